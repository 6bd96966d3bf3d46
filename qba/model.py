"""The reduced model, calibrated from simulations and evaluated over the load (paper, section IV-A5).

`qba.theory` holds the formulas; here the simulator supplies their numbers: service moments from FCFS at the calibration
load, promoted fractions of AA and QBA at several loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import xarray as xr

from qba import theory
from qba.config import EngineConfig
from qba.engine.simulate import serve
from qba.moments import PromotedFraction, ServiceMoments
from qba.policies import AA, FCFS, QBA
from qba.sweeps import AXIS_TEXT, sweep
from qba.workload import synthetic

CALIBRATION_RATE = 30.0
FRACTION_RATES = (25, 27, 29, 31, 33)


def calibrate(
    rate: float = CALIBRATION_RATE, seeds: int = 100, config: EngineConfig = EngineConfig(), **workload: Any
) -> tuple[ServiceMoments, dict[str, int]]:
    """Service moments and effective parallelism from FCFS at one load, all replications pooled.

    Parameters
    ----------
    rate : float
        λ in requests/s.
    seeds : int
        Replications.
    config : EngineConfig
    **workload
        Parameters of `qba.synthetic`.

    Returns
    -------
    moments : ServiceMoments
        Of the true classes.
    servers : dict
        n by ``"formula"`` (paper, section II-B1, with n_safe = M_safe / (E[P] + E[D]/2)) and ``"matched"`` (the n whose
        FCFS wait comes nearest the simulated one).
    """
    workloads = [synthetic(rate, seed, **workload) for seed in range(seeds)]
    runs = [serve(requests, FCFS(), config) for requests in workloads]

    def pooled(source: Sequence, name: str) -> np.ndarray:
        return np.concatenate([getattr(one, name) for one in source])

    start = pooled(runs, "start_s")
    moments = ServiceMoments.from_times(start, pooled(runs, "finish_s"), pooled(workloads, "true_long"))
    wait = float(np.mean(start - pooled(workloads, "arrival_s")))
    prompt, response = (float(pooled(workloads, name).mean()) for name in ("prompt_tokens", "response_tokens"))
    engine = (config.token_budget, config.decode_block)
    return moments, {
        "formula": theory.parallelism_formula(*engine, config.kv_safe_tokens, prompt, response),
        "matched": theory.parallelism_matched(moments, rate, wait, *engine),
    }


def reduced_model(
    rate: Sequence[float],
    seeds: int = 100,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
    *,
    aging: AA = AA(),
    quota: QBA = QBA(),
    **workload: Any,
) -> xr.Dataset:
    """Mean waits of the four policies in the reduced model, for each closure and each choice of parallelism.

    Parameters
    ----------
    rate : sequence of float
        λ in requests/s.
    seeds : int
        Replications behind the calibration and behind each promoted fraction.
    config, executor, progress
        As in `qba.sweep`.
    aging, quota : AA, QBA
        The policies whose promoted fractions are measured.
    **workload
        Parameters of `qba.synthetic`.

    Returns
    -------
    xarray.Dataset
        ``wait_mean_s`` over (parallelism, closure, policy, rate), infinite where the load is 1 or more; ``load`` over
        (parallelism, rate); ``extrapolated`` over (policy, rate), true where the promoted fraction is only clamped;
        ``fraction`` over (aging_policy, fraction_rate), as measured; the calibrated moments and servers.
    """
    rate = np.atleast_1d(rate).astype(float)
    moments, servers = calibrate(seeds=seeds, config=config, **workload)
    axes = {name: [value] for name, value in workload.items()}
    measured = sweep([aging, quota], FRACTION_RATES, seeds, config, executor, progress, **axes).squeeze(
        list(axes), drop=True
    )
    fraction = np.stack(
        [
            measured.aged_fraction.sel(policy="AA").mean("seed"),
            measured.promoted_fraction.sel(policy="QBA").mean("seed"),
        ]
    )
    policies = ("FCFS", "PSF", "AA", "QBA")
    waits = np.empty((len(servers), len(theory.CLOSURES), len(policies), len(rate)))
    loads = np.stack([theory.load(rate, moments, n) for n in servers.values()])
    for i, n in enumerate(servers.values()):
        measured_load = theory.load(FRACTION_RATES, moments, n)
        fractions = [PromotedFraction(measured_load, row) for row in fraction]
        for j, closure in enumerate(theory.CLOSURES):
            by_policy = theory.mean_waits(rate, moments, n, *fractions, closure=closure)
            waits[i, j] = [by_policy[name] for name in policies]
    outside = (rate < min(FRACTION_RATES)) | (rate > max(FRACTION_RATES))
    extrapolated = np.array([outside & (name in ("AA", "QBA")) for name in policies])

    def described(dims: str | tuple, values: object, units: str, text: str) -> tuple:
        return dims, values, {"units": units, "long_name": text}

    return xr.Dataset(
        {
            "wait_mean_s": described(
                ("parallelism", "closure", "policy", "rate"), waits, "s", "mean waiting time in the reduced model"
            ),
            "load": described(("parallelism", "rate"), loads, "1", "load of the reduced model (rho)"),
            "extrapolated": described(
                ("policy", "rate"), extrapolated, "1", "promoted fraction clamped, outside the measured loads"
            ),
            "fraction": described(("aging_policy", "fraction_rate"), fraction, "1", "measured promoted fraction (phi)"),
            "servers": described("parallelism", list(servers.values()), "1", "effective parallelism (n)"),
            "service_mean_s": described((), moments.mean_s, "s", "mean service time"),
            "service_scv": described((), moments.scv, "1", "squared coefficient of variation of the service time"),
            "short_share": described((), moments.short_share, "1", "share of the true shorts"),
            "short_mean_s": described((), moments.short_mean_s, "s", "mean service time of the true shorts"),
            "long_mean_s": described((), moments.long_mean_s, "s", "mean service time of the true longs"),
        },
        coords={
            "parallelism": described("parallelism", list(servers), "1", "how n was chosen"),
            "closure": described("closure", list(theory.CLOSURES), "1", "how promoted fractions enter"),
            "policy": described("policy", list(policies), *AXIS_TEXT["policy"]),
            "rate": described("rate", rate, *AXIS_TEXT["rate"]),
            "aging_policy": described("aging_policy", ["AA", "QBA"], "1", "policy with aging"),
            "fraction_rate": described(
                "fraction_rate", list(FRACTION_RATES), "requests/s", "arrival rate at which a fraction was measured"
            ),
        },
    )
