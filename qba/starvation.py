"""Who is overtaken, and how often: does a finite quota keep aged predicted-long requests from waiting for ever?

The paper says so (section V). The quota does bound how many predicted-short admissions precede a promotion; what it cannot
bound is how often the KV rule refuses the promoted request and lets others pass meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from qba.config import EngineConfig
from qba.engine import simulate
from qba.policies import QBA
from qba.requests import Requests
from qba.sweeps import AXIS_TEXT, check_seeds, run_pieces
from qba.workload import ROOT_SEED, synthetic


def overtakes(run: xr.Dataset, batches: xr.Dataset) -> xr.Dataset:
    """How often predicted-short requests are admitted ahead of an aged predicted-long one that is next of its class.

    Counted at each batch boundary at which the predicted-long request is the oldest waiting of its class and aged. Under
    `qba.QBA` its promotion is *due* there if debt stands and no other promoted request is in prefill; a predicted-short
    one can then go ahead only because the KV rule refused the promoted request and passed it over.

    Parameters
    ----------
    run, batches : xarray.Dataset
        As `qba.simulate` returns them with ``record=True``, for a policy with aging.

    Returns
    -------
    xarray.Dataset
        Dimension ``long``, the predicted-long requests in order: ``before_due`` and ``past_due``, the numbers of such
        admissions; scalar ``largest_batch``, the most predicted-short requests admitted into one batch.
    """
    boundary, theta = batches.time_s.values, batches.threshold_s.values
    long, promoted = run.predicted_long.values, run.promoted.values
    arrival, start = run.arrival_s.values, run.start_s.values
    admissions = np.bincount(np.searchsorted(boundary, start[~long]), minlength=len(boundary))

    # From the start of a promoted request to the end of its prefill, the debt is its own.
    paying = np.zeros(len(boundary) + 1, np.int64)
    np.add.at(paying, np.searchsorted(boundary, start[promoted]), 1)
    np.add.at(paying, np.searchsorted(boundary, run.prefill_end_s.values[promoted]), -1)
    debt = np.concatenate([[0], batches.debt.values[:-1]]) > 0  # as it stood at the boundary
    due = debt & (np.cumsum(paying[:-1]) == 0)

    arrival, start, promoted = arrival[long], start[long], promoted[long]
    # A request is the oldest from the boundary at which the one before it started; there, predicted-short ones come after
    # that one only if it was promoted.
    after = np.searchsorted(boundary, start[:-1]) + ~promoted[:-1]
    first = np.maximum(np.searchsorted(boundary, arrival), np.concatenate([[0], after]))
    last = np.searchsorted(boundary, start)
    counts = np.zeros((2, len(arrival)), np.int64)
    for i, (a, b) in enumerate(zip(first, last)):
        ahead = admissions[a:b] * (boundary[a:b] - arrival[i] > theta[a:b])
        counts[:, i] = ahead[~due[a:b]].sum(), ahead[due[a:b]].sum()
    text = "predicted-short requests admitted ahead of the aged predicted-long one, "
    return xr.Dataset(
        {
            "before_due": ("long", counts[0], {"units": "1", "long_name": text + "before its promotion is due"}),
            "past_due": ("long", counts[1], {"units": "1", "long_name": text + "while its promotion is due"}),
            "largest_batch": (
                (),
                int(admissions.max()),
                {"units": "1", "long_name": "most predicted-short requests admitted into one batch"},
            ),
        }
    )


STATISTICS = {
    "before_due": "most predicted-short admissions ahead of one aged predicted-long request before its promotion is due",
    "past_due": "most predicted-short admissions ahead of one aged predicted-long request while its promotion is due",
    "passed_share": "share of the predicted-long requests passed over while their promotion was due",
    "largest_batch": "most predicted-short requests admitted into one batch",
}


def promotion_delay(
    quota: Sequence[int],
    rate: float = 32,
    seeds: int = 100,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
    *,
    policy: QBA = QBA(),
    **workload: Any,
) -> xr.Dataset:
    """The worst overtaking in each run of QBA on the synthetic workload.

    Parameters
    ----------
    quota : sequence of int
        Values of k.
    rate : float
        λ in requests/s.
    seeds : int
        Replications.
    config, executor, progress
        As in `qba.sweep`.
    policy : QBA
        Its other parameters.
    **workload
        Parameters of `qba.synthetic`.

    Returns
    -------
    xarray.Dataset
        Dimensions (quota, seed), and ``held_back`` over (stream_length); see the variables' ``long_name``.
    """
    seeds = check_seeds(seeds)
    quota = np.atleast_1d(quota).tolist()
    values = np.empty((len(quota), len(seeds), len(STATISTICS)))
    synthetic_of = {"rate": rate} | workload
    tasks = [
        ((replace(policy, quota=k), synthetic_of, seed, config), np.ix_([i], [j]))
        for i, k in enumerate(quota)
        for j, seed in enumerate(seeds)
    ]
    run_pieces(_worst, tasks, values, executor, progress)
    statistics = {
        name: (("quota", "seed"), values[..., i], {"units": "1", "long_name": text})
        for i, (name, text) in enumerate(STATISTICS.items())
    }
    stream = (
        "stream_length",
        [held_back(n, config, policy) for n in STREAM_LENGTHS],
        {"units": "1", "long_name": "predicted-short admissions ahead of one due request in a stream made for it"},
    )

    def axis(name: str, numbers: Sequence[int], units: str, text: str) -> tuple:
        return name, list(numbers), {"units": units, "long_name": text}

    return xr.Dataset(
        statistics | {"held_back": stream},
        coords={
            "quota": axis("quota", quota, *AXIS_TEXT["quota"]),
            "seed": axis("seed", seeds, *AXIS_TEXT["seed"]),
            "stream_length": axis("stream_length", STREAM_LENGTHS, "1", "predicted-short requests in the stream"),
        },
        attrs={
            "policies": "QBA",
            "engine": repr(config),
            "workload": f"synthetic({', '.join(f'{name}={value}' for name, value in synthetic_of.items())})",
            "root_seed": ROOT_SEED,
        },
    )


STREAM_LENGTHS = (50, 100, 200, 400)


def held_back(stream_length: int, config: EngineConfig = EngineConfig(), policy: QBA = QBA()) -> int:
    """How many predicted-short requests go ahead of one whose promotion is due, in a stream made for it (quota 1).

    The predicted-long prompt fills the KV-safe limit alone, and a short request a second keeps the cache from being empty,
    so it is passed over until the stream ends: the count grows with the stream, whatever the quota. Only the options of
    ``config`` and ``policy`` count.
    """
    shorts = range(1, stream_length + 1)
    requests = Requests(
        arrival_s=[0, 0.5, *shorts],
        prompt_tokens=[1, 7 if config.kv_projection == "reserve-all" else 8, *[1 for _ in shorts]],
        response_tokens=[1, 1, *[2 for _ in shorts]],
        predicted_long=[False, True, *[False for _ in shorts]],
    )
    engine = replace(config, token_budget=4, decode_block=1, kv_capacity=9, kv_safety=8 / 9, batch_overhead_s=1.0)
    return int(overtakes(*simulate(requests, replace(policy, quota=1), engine, record=True)).past_due.item())


def _worst(policy: QBA, workload: dict[str, Any], seed: int, config: EngineConfig) -> np.ndarray:
    found = overtakes(*simulate(synthetic(seed=seed, **workload), policy, config, record=True))
    passed = found.past_due.values
    worst = (found.before_due.values.max(), passed.max(), np.mean(passed > 0), found.largest_batch.item())
    return np.array(worst, dtype=float).reshape(1, 1, -1)
