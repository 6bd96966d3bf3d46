"""Who is overtaken, and how often: does a finite quota keep aged predicted-long requests from waiting for ever?

The paper says so (section V). The quota does bound how many predicted-short admissions precede a promotion; what it cannot
bound is how often the KV rule refuses the promoted request and lets others pass meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
import xarray as xr

from qba.config import EngineConfig
from qba.engine import simulate
from qba.policies import QBA
from qba.sweeps import AXIS_TEXT, run_pieces
from qba.workload import synthetic


def overtakes(run: xr.Dataset, batches: xr.Dataset) -> xr.Dataset:
    """How often predicted-short requests are admitted ahead of an aged predicted-long one that is next of its class.

    A predicted-long request counts from the batch boundary at which it is the oldest waiting of its class and aged, until
    it starts. Under `qba.QBA` such an admission is either one that the quota allows (no debt stands), or one that happens
    while debt stands, because the KV rule refused the promoted request and passed it over.

    Parameters
    ----------
    run, batches : xarray.Dataset
        As `qba.simulate` returns them with ``record=True``, for a policy with aging.

    Returns
    -------
    xarray.Dataset
        Dimension ``long``, the predicted-long requests in order: ``within_quota`` and ``past_debt``, the numbers of such
        admissions; scalar ``largest_batch``, the most predicted-short prefills that one batch completed.
    """
    predicted_long = run.predicted_long.values
    arrival, start = run.arrival_s.values[predicted_long], run.start_s.values[predicted_long]
    boundary, theta = batches.time_s.values, batches.threshold_s.values
    short_starts = np.searchsorted(boundary, run.start_s.values[~predicted_long])
    admissions = np.bincount(short_starts, minlength=len(boundary))
    debt = np.concatenate([[0], batches.debt.values[:-1]]) > 0  # as it stood at the boundary
    before = [np.concatenate([[0], np.cumsum(admissions * stands)]) for stands in (~debt, debt)]
    counts = np.zeros((2, len(arrival)), np.int64)
    head_from = np.maximum(arrival, np.concatenate([[-np.inf], start[:-1]]))
    first, last = np.searchsorted(boundary, head_from), np.searchsorted(boundary, start)
    for i, (a, b) in enumerate(zip(first, last)):
        aged = boundary[a:b] - arrival[i] > theta[a:b]
        if aged.any():
            since = a + int(aged.argmax())
            counts[:, i] = [total[b] - total[since] for total in before]
    completed = np.searchsorted(boundary, run.prefill_end_s.values[~predicted_long])
    text = "predicted-short requests admitted ahead of the aged predicted-long one, "
    return xr.Dataset(
        {
            "within_quota": ("long", counts[0], {"units": "1", "long_name": text + "without debt"}),
            "past_debt": ("long", counts[1], {"units": "1", "long_name": text + "while debt stood"}),
            "largest_batch": (
                (),
                int(np.bincount(completed).max()) if len(completed) else 0,
                {"units": "1", "long_name": "most predicted-short prefills completed by one batch"},
            ),
        }
    )


STATISTICS = {
    "within_quota": "most predicted-short admissions ahead of one aged predicted-long request, without debt",
    "past_debt": "most predicted-short admissions ahead of one aged predicted-long request, while debt stood",
    "passed_share": "share of the predicted-long requests passed over while debt stood",
    "largest_batch": "most predicted-short prefills completed by one batch",
}


def promotion_delay(
    quota: Sequence[int],
    rate: float = 32,
    seeds: int = 100,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
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

    Returns
    -------
    xarray.Dataset
        Dimensions (quota, seed); see the variables' ``long_name``.
    """
    seeds = range(seeds)
    values = np.empty((len(quota), len(seeds), len(STATISTICS)))
    tasks = [((k, seed, rate, config), np.ix_([i], [j])) for i, k in enumerate(quota) for j, seed in enumerate(seeds)]
    run_pieces(_worst, tasks, values, executor, progress)
    return xr.Dataset(
        {
            name: (("quota", "seed"), values[..., i], {"units": "1", "long_name": text})
            for i, (name, text) in enumerate(STATISTICS.items())
        },
        coords={
            "quota": ("quota", list(quota), dict(zip(("units", "long_name"), AXIS_TEXT["quota"]))),
            "seed": ("seed", list(seeds), dict(zip(("units", "long_name"), AXIS_TEXT["seed"]))),
        },
    )


def _worst(quota: int, seed: int, rate: float, config: EngineConfig) -> np.ndarray:
    found = overtakes(*simulate(synthetic(rate, seed), QBA(quota=quota), config, record=True))
    passed = found.past_debt.values
    worst = (found.within_quota.values.max(), passed.max(), np.mean(passed > 0), found.largest_batch.item())
    return np.array(worst, dtype=float).reshape(1, 1, -1)
