"""Summaries of a run: means, medians and 99th percentiles, overall and by true class.

Percentiles interpolate linearly between order statistics. A statistic over a class without requests is NaN.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from qba.engine.simulate import SCALARS, Run, run_scalars
from qba.config import EngineConfig
from qba.errors import InputError
from qba.order_statistics import quantiles
from qba.policies import Policy
from qba.requests import Requests

_QUANTITIES = {
    "wait": ("waiting time", ("", "_true_short", "_true_long")),
    "ttft": ("time to first token", ("",)),
    "latency": ("end-to-end latency", ("",)),
}
_STATISTICS = {"mean": "mean", "p50": "median", "p99": "P99"}

SUMMARY: dict[str, tuple[str, str]] = {
    f"{quantity}_{statistic}{group}_s": ("s", f"{words} {text}" + group.replace("_true_", ", true-"))
    for quantity, (text, groups) in _QUANTITIES.items()
    for group in groups
    for statistic, words in _STATISTICS.items()
} | SCALARS
"""Units and long name of every summary statistic."""


def statistics(
    arrival_s: np.ndarray, start_s: np.ndarray, first_token_s: np.ndarray, finish_s: np.ndarray, true_long: np.ndarray
) -> dict[str, float]:
    """The statistics of one run's columns, each of shape (n,), in seconds; the scalars of `SUMMARY` are left out."""
    wait = start_s - arrival_s
    samples = {
        ("wait", ""): wait,
        ("wait", "_true_short"): wait[~true_long],
        ("wait", "_true_long"): wait[true_long],
        ("ttft", ""): first_token_s - arrival_s,
        ("latency", ""): finish_s - arrival_s,
    }
    values = {}
    for (quantity, group), sample in samples.items():
        mean = p50 = p99 = np.nan
        if len(sample):
            mean = float(np.add.reduce(sample)) / len(sample)  # as sample.mean(), at half its cost
            p50, p99 = quantiles(sample, (0.5, 0.99))
        for statistic, value in (("mean", mean), ("p50", p50), ("p99", p99)):
            values[f"{quantity}_{statistic}{group}_s"] = value
    return values


def summary_values(requests: Requests, policy: Policy, config: EngineConfig, result: Run) -> list[float]:
    """The values of `SUMMARY`, in its order, without building a dataset (sweeps do this many times a second)."""
    values = statistics(
        requests.arrival_s, result.start_s, result.first_token_s, result.finish_s, requests.true_long
    ) | run_scalars(requests, policy, config, result)
    return [values[name] for name in SUMMARY]


def summarize(run: xr.Dataset) -> xr.Dataset:
    """Summarise one run.

    Parameters
    ----------
    run : xarray.Dataset
        As `qba.simulate` returns it.

    Returns
    -------
    xarray.Dataset
        Scalars: mean, median and 99th percentile of the waiting time (overall, and over the true-short and true-long
        requests), of the time to first token and of the end-to-end latency, in seconds; and the run's own scalars.
    """
    if not isinstance(run, xr.Dataset) or not {"wait_s", *SCALARS} <= set(run):
        raise InputError(
            "summarize: run must be the dataset that qba.simulate returns (the first of two with record=True)"
        )
    columns = ("arrival_s", "start_s", "first_token_s", "finish_s", "true_long")
    values = statistics(*(run[name].values for name in columns))
    values |= {name: run[name].item() for name in SCALARS}
    variables = {name: ((), values[name], {"units": u, "long_name": text}) for name, (u, text) in SUMMARY.items()}
    return xr.Dataset(variables, attrs=run.attrs)
