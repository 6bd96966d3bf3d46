"""How long a run and how many seeds: what the waits owe to the horizon, and what the intervals owe to pairing.

Above the load that the engine can carry, waits grow for as long as requests arrive: such a number is one of the horizon
as much as of the policy (Asmussen, Applied Probability and Queues, 2003, chapter X). Below it a run that starts with an
empty engine, as all runs here do, still waits less than the steady state until it has lasted long enough (Law,
Simulation Modeling and Analysis, 2015, chapter 9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import numpy as np
import xarray as xr

from qba.config import EngineConfig
from qba.errors import InputError
from qba.intervals import function_interval, mean_interval, seeds_for_width, seeds_to_decide, stacked, student
from qba.metrics import SUMMARY
from qba.policies import PAPER
from qba.sweeps import AXIS_TEXT, sweep
from qba.validate import number, whole_number
from qba.workload import ROOT_SEED

POLICIES = tuple(cls() for cls in PAPER)
WAITS = ("wait_mean_s", "wait_p99_s", "wait_p99_true_short_s", "wait_p99_true_long_s")
PUBLISHED_S = 100
"""Horizon of the published study, seconds: the default of `qba.synthetic`."""
FEWEST = 16
"""Replications of the longest runs, however long."""
OVERLOAD = 0.95
"""Share of the offered requests below which the engine counts as overloaded, so that what it serves is its capacity."""
WIDTH = 0.05
"""Relative half-width that `seeds_study` asks for."""
RESAMPLES = 1000
"""Samples drawn for the coverage at each number of seeds."""

SETTLED = 0.85
"""Share of its value at the longest horizon from which a mean wait below capacity counts as settled."""


def horizon_study(
    rates: Sequence[float] = (26, 28, 30, 32, 34, 36),
    horizons: Sequence[float] = (12.5, 25, 50, 100, 200, 400, 800, 1600),
    seeds: int = 100,
    simulated_s: float = 20_000,
    *,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """The paper's four policies over runs of different length.

    A longer run goes on where a shorter one of the same seed and load ends: the same requests, and more.

    Parameters
    ----------
    rates : sequence of float
        λ in requests/s. The capacity is read off the highest one, which should be well above it.
    horizons : sequence of float
        Mean duration of the arrivals in seconds, rising.
    seeds : int
        Replications at most.
    simulated_s : float
        Simulated seconds at each point: a horizon that would take more gets fewer replications, but at least `FEWEST`
        (or ``seeds``).
    config, executor, progress
        See `qba.sweep`.

    Returns
    -------
    xarray.Dataset
        Dimension ``estimate``: value, low, high (95 % over paired seeds). By policy, rate and horizon: the mean and
        the P99 waits; `wait_relative`, the mean wait over FCFS's; `served_rate`, requests over makespan; `growth`, the
        exponent of the mean wait from the horizon before to this one (0: settled, 1: in proportion). By rate and
        horizon: `kept_gain`, the share of PSF's gain over FCFS in the mean that QBA keeps. By policy: `capacity`, the
        served rate of the longest runs at the highest load, NaN where that is no overload (see `OVERLOAD`). By horizon:
        `replications`.

    Raises
    ------
    InputError
        If the horizons do not rise, or a number is outside its range.
    """
    horizons, rates = [float(h) for h in horizons], [float(r) for r in rates]
    if not horizons or any(b <= a for a, b in zip(horizons, horizons[1:])):
        raise InputError(f"horizon_study: horizons = {horizons}, but they must rise and be at least one")
    seeds = whole_number("horizon_study", "seeds", seeds, at_least=2)
    number("horizon_study", "simulated_s", simulated_s, above=0)
    replications = [int(np.clip(simulated_s // h, min(FEWEST, seeds), seeds)) for h in horizons]
    tables = [
        sweep(POLICIES, rates, n, config, executor, progress, horizon_s=[h])[[*WAITS, "makespan_s"]].squeeze(
            "horizon_s"
        )
        for h, n in zip(horizons, replications)
    ]
    parts = [_one_horizon(table) for table in tables]
    parts[0]["growth"] = parts[0].wait_mean_s * np.nan
    for i in range(1, len(tables)):
        parts[i]["growth"] = _growth(tables[i - 1], tables[i])
    study = xr.concat(parts, xr.DataArray(horizons, dims="horizon_s", name="horizon_s"))
    study["replications"] = ("horizon_s", replications)
    served = study.served_rate.isel(rate=int(np.argmax(rates)), horizon_s=-1, drop=True)
    study["capacity"] = served.where(served.sel(estimate="high") < OVERLOAD * max(rates))
    study = study.transpose("estimate", "policy", "rate", "horizon_s")
    return _labelled(study, HORIZON_TEXT).assign_attrs(tables[0].attrs)


COMMON_TEXT = {"policy": AXIS_TEXT["policy"], "estimate": ("1", "estimate, and both ends of its 95 % interval")}
HORIZON_TEXT = (
    COMMON_TEXT
    | {name: SUMMARY[name] for name in WAITS}
    | {
        "served_rate": ("requests/s", "served requests over makespan"),
        "wait_relative": ("1", "mean waiting time over FCFS's"),
        "kept_gain": ("1", "share of PSF's gain over FCFS in mean waiting time that QBA keeps"),
        "growth": ("1", "exponent of the mean waiting time's growth from the horizon before"),
        "capacity": ("requests/s", "arrival rate that the engine can just carry"),
        "replications": ("1", "number of seeds"),
        "rate": AXIS_TEXT["rate"],
        "horizon_s": ("s", "horizon: mean duration of the arrivals"),
    }
)


def _one_horizon(table: xr.Dataset) -> xr.Dataset:
    """Estimates of one horizon. table: the waits and `makespan_s` over (policy, rate, seed)."""
    requests = np.round(table.rate * table.horizon_s)  # as many as `qba.synthetic` draws
    wait = table.wait_mean_s
    fcfs, psf, qba = (wait.sel(policy=name, drop=True) for name in ("FCFS", "PSF", "QBA"))
    found = {name: mean_interval(table[name]) for name in WAITS}
    found["served_rate"] = function_interval(lambda makespan: requests / makespan, table.makespan_s)
    found["wait_relative"] = function_interval(lambda mine, theirs: mine / theirs, wait, fcfs)
    found["kept_gain"] = function_interval(lambda f, p, q: (f - q) / (f - p), fcfs, psf, qba)
    return xr.Dataset({name: stacked(interval) for name, interval in found.items()}).drop_vars("horizon_s")


def settling(study: xr.Dataset, horizon_s: float = PUBLISHED_S) -> xr.DataArray:
    """What the mean wait at one horizon is worth, by policy and rate.

    study: as `horizon_study` returns it. "no steady state" where the load is above the capacity, "steady" where it is
    below and the mean wait is at least `SETTLED` of that at the longest horizon, "not yet steady" where it is less, and
    "at capacity" where the capacity's interval does not tell.

    Raises InputError if the study has no such horizon.
    """
    if horizon_s not in study.horizon_s:
        there = ", ".join(f"{h:g}" for h in study.horizon_s.values)
        raise InputError(f"settling: no horizon_s {horizon_s!r} in the study; there are {there}")
    wait, capacity = study.wait_mean_s.sel(estimate="value", drop=True), study.capacity
    reached = wait.sel(horizon_s=horizon_s, drop=True) / wait.isel(horizon_s=-1, drop=True)
    below, above = study.rate < capacity.sel(estimate="low"), study.rate > capacity.sel(estimate="high")
    words = xr.where(reached < SETTLED, "not yet steady", "steady")
    return xr.where(above, "no steady state", xr.where(below, words, "at capacity")).transpose("policy", "rate")


def _growth(shorter: xr.Dataset, longer: xr.Dataset) -> xr.DataArray:
    """Exponent of the mean wait between two horizons, over the seeds that both have (the longer has no others)."""
    doublings = np.log(longer.horizon_s.item() / shorter.horizon_s.item())
    columns = (table.wait_mean_s.sel(seed=longer.seed).drop_vars("horizon_s") for table in (shorter, longer))
    return stacked(function_interval(lambda before, after: np.log(after / before) / doublings, *columns))


def seeds_study(
    rate: float = 32,
    seeds: int = 1000,
    counts: Sequence[int] = (10, 20, 30, 50, 100, 200, 500, 1000),
    *,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """What a number of seeds buys at one load, with the same seeds under every policy and with different ones.

    Means and deviations of ``seeds`` replications are taken for the truth, and what fewer or more of them would give is
    computed from these.

    Parameters
    ----------
    rate : float
        λ in requests/s.
    seeds : int
        Replications simulated, 2 or more.
    counts : sequence of int
        Numbers of seeds to tell the precision of, each 2 or more.
    config, executor, progress
        See `qba.sweep`.

    Returns
    -------
    xarray.Dataset
        By statistic (mean wait and P99s) and policy: `mean`; `half_width` of the 95 % interval by ``quantity`` (the
        mean, or its ratio to FCFS's over the same or over different seeds) and number of ``seeds``, relative to the
        estimate; `seeds_for_width`, how many make it `WIDTH`; `seeds_to_decide`, how many show a policy below or above
        ``other`` with a probability of 90 %, by ``pairing``; `coverage`, how often the interval of a mean holds the
        truth, by number of seeds, in `RESAMPLES` samples drawn with replacement.

    Raises
    ------
    InputError
        If a number is outside its range.
    """
    seeds = whole_number("seeds_study", "seeds", seeds, at_least=2)
    counts = [whole_number("seeds_study", "counts", n, at_least=2) for n in counts]
    table = sweep(POLICIES, rate, seeds, config, executor, progress).squeeze("rate", drop=True)
    values = table[list(WAITS)].drop_attrs(deep=True).to_dataarray("statistic")
    mean, deviation = values.mean("seed"), values.std("seed", ddof=1)
    fcfs = values.sel(policy="FCFS", drop=True)
    variation = deviation / mean
    paired = (values / mean - fcfs / fcfs.mean("seed")).std("seed", ddof=1)  # of the ratio, to first order
    unpaired = np.sqrt(variation**2 + variation.sel(policy="FCFS", drop=True) ** 2)
    compared = values.policy != "FCFS"
    relative = xr.concat(
        [variation, paired.where(compared), unpaired.where(compared)],
        xr.DataArray(list(QUANTITIES), dims="quantity", name="quantity"),
    )
    per_seed = xr.DataArray([student(n) / np.sqrt(n) for n in counts], coords={"seeds": counts})
    study = xr.Dataset(
        {
            "mean": mean,
            "half_width": relative * per_seed,
            "seeds_for_width": xr.apply_ufunc(seeds_for_width, relative, WIDTH, vectorize=True),
            "seeds_to_decide": _deciding(values),
            "coverage": _coverage(values, counts),
        }
    )
    return _labelled(study, SEEDS_TEXT).assign_attrs(table.attrs, rate=rate, replications=seeds)


PAIRINGS = ("same seeds", "other seeds")
QUANTITIES = ("mean", *(f"ratio to FCFS, {pairing}" for pairing in PAIRINGS))
SEEDS_TEXT = COMMON_TEXT | {
    "mean": ("s", "mean over seeds"),
    "half_width": ("1", "half-width of the 95 % interval, relative to the estimate"),
    "seeds_for_width": ("1", f"seeds for a half-width of {WIDTH:.0%}"),
    "seeds_to_decide": ("1", "seeds that decide the order of two policies with a probability of 90 %"),
    "coverage": ("1", "share of 95 % intervals that hold the mean"),
    "seeds": ("1", "number of seeds"),
    "statistic": ("1", "statistic of one run"),
    "quantity": ("1", "what the interval is of"),
    "pairing": ("1", "which seeds the two policies are given"),
    "other": ("1", "policy compared with"),
}


def _deciding(values: xr.DataArray) -> xr.DataArray:
    """How many seeds decide the order of each two policies: dimensions (pairing, statistic, policy, other)."""
    others = values.rename(policy="other")
    difference = values.mean("seed") - others.mean("seed")
    paired = (values - others).std("seed", ddof=1)
    unpaired = np.sqrt(values.var("seed", ddof=1) + others.var("seed", ddof=1))
    deviation = xr.concat([paired, unpaired], xr.DataArray(list(PAIRINGS), dims="pairing", name="pairing"))
    needed = xr.apply_ufunc(seeds_to_decide, difference, deviation, vectorize=True)
    return needed.where(values.policy != others.other)


def _coverage(values: xr.DataArray, counts: Sequence[int]) -> xr.DataArray:
    """How often Student's interval of so many seeds holds the mean: dimensions (statistic, policy, seeds)."""
    rng = np.random.default_rng(ROOT_SEED)
    truth = values.mean("seed")
    shares = []
    for n in counts:
        drawn = xr.DataArray(rng.integers(values.sizes["seed"], size=(RESAMPLES, n)), dims=("resample", "draw"))
        one_by_one = []
        for statistic in values.statistic.values:  # in turn, since a thousand samples of a thousand are large
            sample = values.sel(statistic=statistic).isel(seed=drawn)
            half = student(n) * sample.std("draw", ddof=1) / np.sqrt(n)
            one_by_one.append((abs(sample.mean("draw") - truth.sel(statistic=statistic)) <= half).mean("resample"))
        shares.append(xr.concat(one_by_one, "statistic"))
    return xr.concat(shares, xr.DataArray(list(counts), dims="seeds", name="seeds"))


def _labelled(study: xr.Dataset, texts: Mapping[str, tuple[str, str]]) -> xr.Dataset:
    """Every variable and coordinate with its units and long name, and no other attribute."""
    study = study.drop_attrs(deep=True)
    for name in study.variables:
        units, text = texts[name]
        study[name].attrs.update(units=units, long_name=text)
    return study
