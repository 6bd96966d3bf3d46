"""The policy lab's study: every policy on the same requests, what each trades, and what QBA's aging gate adds.

All policies see the same requests, replication by replication and window by window, so that any two are compared by their
paired differences. Predictions are perfect, or they are noisy in class and in length at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np
import xarray as xr

from qba.config import EngineConfig
from qba.intervals import function_interval, mean_interval, stacked
from qba.policies import AA, FCFS, PSF, QBA, Policy
from qba.predictor import predict
from qba.requests import LONG_QUANTILE
from qba.rivals import RIVALS, WRR
from qba.sweeps import AXIS_TEXT, replay, sweep
from qba.traces import standin_2024

RATES = (28, 30, 32)
"""Loads of some 0.89, 0.95 and 1.02 of what the default engine carries."""
NOISE = {"short_to_long": 0.1, "long_to_short": 0.2, "length_error": 0.6}
"""What noisy predictions get wrong: a tenth of the shorts, a fifth of the longs, lengths by a factor of e^0.6 (1.8)."""
PREDICTIONS = {"perfect": dict.fromkeys(NOISE, 0.0), "noisy": NOISE}
KNOWN = {"FCFS": ("nothing",), "PSF": ("class",), "AA": ("class",), "QBA": ("class",)}
"""What the paper's policies know; the others say so themselves."""
KEEPS = ["wait_mean_s", "wait_p99_s", "wait_p99_true_short_s", "wait_p99_true_long_s", "ttft_p99_s"]
QUOTAS = (1, 2, 3, 4, 5, 6, 8, 12)
CRITERIA = ("wait_mean_s", "wait_p99_s", "wait_p99_true_long_s")
"""What a policy is judged by when it is asked which no other dominates: the mean, the tail, and the long requests' tail, which
one in a hundred of all does not show."""


def lab_policies() -> list[Policy]:
    """The paper's four and all rivals, with their own parameters."""
    return [FCFS(), PSF(), AA(), QBA(), *(rival() for rival in RIVALS)]


def lab_study(
    rates: Sequence[float] = RATES,
    seeds: int = 100,
    policies: Sequence[Policy] | None = None,
    *,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """All policies on the paper's workload, with perfect and with noisy predictions.

    Parameters
    ----------
    rates : sequence of float
        λ in requests/s.
    seeds : int
        Replications.
    policies : sequence of Policy, optional
        Default: `lab_policies`.
    config, executor, progress
        See `qba.sweep`.

    Returns
    -------
    xarray.Dataset
        Dimensions (prediction, policy, rate, seed): the statistics of `KEEPS`.
    """
    policies = lab_policies() if policies is None else policies
    parts = [
        sweep(policies, rates, seeds, config, executor, progress, **{name: [value] for name, value in noise.items()})
        .squeeze(list(noise), drop=True)[KEEPS]
        for noise in PREDICTIONS.values()
    ]  # fmt: skip
    return _by_prediction(parts)


def lab_windows(
    count: int = 100,
    policies: Sequence[Policy] | None = None,
    seed: int = 0,
    *,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """All policies on the windows of the stand-in for the Azure week of 2024 (see `qba.traces.standin_2024`).

    Parameters
    ----------
    count, seed : int
        See `qba.traces.standin_2024`.
    policies, config, executor, progress
        As in `lab_study`.

    Returns
    -------
    xarray.Dataset
        Dimensions (prediction, policy, window): the statistics of `KEEPS`.
    """
    policies = lab_policies() if policies is None else policies
    windows = standin_2024(count, seed=seed)
    parts = [
        replay([predict(w, k, **noise) for k, w in enumerate(windows)], policies, config, executor, progress)[KEEPS]
        for noise in PREDICTIONS.values()
    ]
    return _by_prediction(parts)


def gate_study(
    quotas: Sequence[int] = QUOTAS,
    rate: float = 32,
    seeds: int = 100,
    *,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """What QBA's aging gate adds to its quota: QBA against weighted round robin 1:k, which is the quota alone.

    A promotion clears QBA's count when it starts, as it does in round robin. Besides the gate the two still differ in small
    things: QBA counts a short when its prefill ends, and goes on counting past a long that was let in for want of shorts. In
    theory the gate matters while k is below the ratio of shorts to longs (5.67): above it longs are let in no less often than they come.

    Parameters
    ----------
    quotas : sequence of int
        k.
    rate, seeds, config, executor, progress
        See `lab_study`.

    Returns
    -------
    xarray.Dataset
        By (quota, estimate): the paired difference QBA less WRR of each statistic of `KEEPS`, relative to WRR's mean. The
        attribute ``shorts_to_longs`` has the ratio.
    """
    policies = [replace(QBA(), promotion_clears="start"), WRR()]
    runs = []
    for k in quotas:
        both = [replace(policies[0], quota=k), replace(policies[1], k=k)]
        runs.append(sweep(both, rate, seeds, config, executor, progress).squeeze("rate", drop=True)[KEEPS])
    table = xr.concat(runs, xr.DataArray(list(quotas), dims="quota", name="quota"))
    gated, plain = table.isel(policy=0, drop=True), table.isel(policy=1, drop=True)
    found = {
        name: stacked(mean_interval((gated[name] - plain[name]) / plain[name].mean("seed")))
        .assign_attrs({"units": "1", "long_name": f"{table[name].attrs['long_name']}: QBA less WRR, relative to WRR's"})
        for name in KEEPS
    }  # fmt: skip
    study = xr.Dataset(found)
    study["quota"].attrs.update(zip(("units", "long_name"), AXIS_TEXT["quota"]))
    study["estimate"].attrs.update(units="1", long_name="estimate, and both ends of its 95 % interval")
    return study.assign_attrs(shorts_to_longs=LONG_QUANTILE / (1 - LONG_QUANTILE), engine=repr(config))


def undominated(study: xr.Dataset, criteria: Sequence[str] = CRITERIA) -> xr.DataArray:
    """Which policies no other dominates, over the replications or windows of a study.

    One policy dominates another if it is lower in every criterion by the paired 95 % interval.

    Parameters
    ----------
    study : xarray.Dataset
        As `lab_study` or `lab_windows` returns it.
    criteria : sequence of str

    Returns
    -------
    xarray.DataArray of bool
        The dimensions of the study without ``seed`` or ``window``.
    """
    dim = "seed" if "seed" in study.dims else "window"
    beaten = []
    for name in study.policy.values:
        better = None
        for criterion in criteria:
            _, _, high = mean_interval(study[criterion] - study[criterion].sel(policy=name, drop=True), dim)
            better = high < 0 if better is None else better & (high < 0)
        beaten.append(better.any("policy"))
    found = ~xr.concat(beaten, study.policy)
    return found.assign_attrs(
        units="1", long_name="whether no other policy is surely lower in " + " and ".join(criteria)
    )


def frontier_table(study: xr.Dataset, reference: str = "FCFS") -> dict[str, list]:
    """Mean and tail relative to a reference policy's, with paired 95 % intervals, and who is undominated.

    study: one of `lab_study` or `lab_windows` with only policies and replications or windows left. Policies whose figures are
    the same are one row, its name joining theirs; ``members`` lists them.
    """
    dim = "seed" if "seed" in study.dims else "window"
    columns: dict[str, np.ndarray] = {}
    for name, criterion in zip(("mean", "tail"), CRITERIA[:2]):
        theirs = study[criterion].sel(policy=reference, drop=True)
        ratio = function_interval(lambda mine, other: mine / other, study[criterion], theirs, dim=dim)
        columns |= {name + end: values.values for end, values in zip(("", "_low", "_high"), ratio)}
    columns["undominated"] = undominated(study).values
    same: dict[tuple[float, float], list[int]] = {}
    for i, pair in enumerate(zip(columns["mean"], columns["tail"])):
        same.setdefault(pair, []).append(i)
    members = [[str(study.policy.values[i]) for i in group] for group in same.values()]
    first = [group[0] for group in same.values()]
    table = {name: values[first].tolist() for name, values in columns.items()}
    return {"policy": [", ".join(names) for names in members], "members": members, **table}


def trade_text(study: xr.Dataset) -> str:
    """The policies of one load and kind of prediction as lines of text, sorted by mean: what each knows, and who is undominated.

    study: as in `frontier_table`. Means with their 95 % intervals.
    """
    dim = "seed" if "seed" in study.dims else "window"
    best = undominated(study)
    knows = {policy.name: ", ".join(KNOWN.get(policy.name) or policy.knows) for policy in lab_policies()}
    lines = [
        f"{'':<2}{'policy':<18}{'knows':<15}"
        + "".join(f"{head:>22}" for head in ("mean (s)", "P99 (s)", "P99 of longs (s)"))
    ]
    for name in study.sortby(study.wait_mean_s.mean(dim)).policy.values:
        cells = []
        for criterion in CRITERIA:
            mean, low, high = (end.item() for end in mean_interval(study[criterion].sel(policy=name), dim))
            cells.append(f"{mean:.2f} [{low:.2f}…{high:.2f}]")
        mark = "*" if best.sel(policy=name) else " "
        lines.append(f"{mark} {name:<18}{knows.get(name, ''):<15}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join([*lines, "* no other policy is surely lower in all three"])


def _by_prediction(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    attrs = {"units": "1", "long_name": "quality of the predictions"}
    axis = xr.DataArray(list(PREDICTIONS), dims="prediction", name="prediction", attrs=attrs)
    noise = ", ".join(f"{name}={value:g}" for name, value in NOISE.items())
    return xr.concat(parts, axis).assign_attrs(noise=noise)
