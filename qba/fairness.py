"""What else users ask of a policy: slowdown, the worst wait, who starves, how evenly it treats, goodput."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from qba.engine.simulate import Run
from qba.errors import InputError
from qba.order_statistics import quantiles
from qba.requests import Requests
from qba.validate import number

TTFT_BOUND_S = 2.0
STARVED_S = 10.0

FAIRNESS: dict[str, tuple[str, str]] = {
    "slowdown_mean": ("1", "mean of waiting time over service time"),
    "slowdown_p99": ("1", "P99 of waiting time over service time"),
    "slowdown_mean_true_short": ("1", "mean of waiting time over service time, true-short"),
    "slowdown_mean_true_long": ("1", "mean of waiting time over service time, true-long"),
    "wait_max_s": ("s", "longest waiting time"),
    "starved": ("1", "requests that waited longer than the limit"),
    "jain_classes": ("1", "Jain index of the true classes' mean sojourn over service"),
    "jain_clients": ("1", "Jain index of the clients' mean sojourn over service"),
    "goodput": ("requests/s", "requests with their first token in time, over the makespan"),
}
"""Units and long name of each measure."""


def fairness(
    requests: Requests, run: Run | xr.Dataset, *, ttft_bound_s: float = TTFT_BOUND_S, starved_s: float = STARVED_S
) -> dict[str, float]:
    """Measures of one run beside those of `qba.summarize`.

    Parameters
    ----------
    requests : Requests
        What was served.
    run : xarray.Dataset
        As `qba.simulate` returns it.
    ttft_bound_s : float
        A first token within so many seconds counts as in time.
    starved_s : float
        A request that waits longer counts as starved.

    Returns
    -------
    dict
        The measures of `FAIRNESS`. Service is the time from the first prefill chunk to the last token, so a slowdown of 1
        says that a request waited as long as it was served. Jain's index (Jain, Chiu & Hawe, DEC-TR-301, 1984) is 1 where
        all groups fare alike and 1/n where one of n bears everything; here it is of the mean sojourn time over service time.

    Raises
    ------
    InputError
        If the run is not of these requests, or a limit is not a number above 0.
    """
    number("fairness", "ttft_bound_s", ttft_bound_s, above=0)
    number("fairness", "starved_s", starved_s, above=0)
    start, first, finish = (np.asarray(getattr(run, name)) for name in ("start_s", "first_token_s", "finish_s"))
    if len(start) != len(requests):
        raise InputError(f"fairness: the run has {len(start)} requests, but {len(requests)} are given")
    wait = start - requests.arrival_s
    slowdown = wait / (finish - start)
    long = requests.true_long
    ends = finish.max() - requests.arrival_s[0]
    return {
        "slowdown_mean": float(slowdown.mean()),
        "slowdown_p99": quantiles(slowdown, (0.99,))[0],
        "slowdown_mean_true_short": float(slowdown[~long].mean()) if not long.all() else np.nan,
        "slowdown_mean_true_long": float(slowdown[long].mean()) if long.any() else np.nan,
        "wait_max_s": float(wait.max()),
        "starved": int(np.count_nonzero(wait > starved_s)),
        "jain_classes": jain(_means(1 + slowdown, long)),
        "jain_clients": jain(_means(1 + slowdown, requests.client)),
        "goodput": float(np.count_nonzero(first - requests.arrival_s <= ttft_bound_s) / ends) if ends else np.inf,
    }


def jain(values: ArrayLike) -> float:
    """Jain's index of fairness of n values >= 0: (sum)² / (n · sum of squares), 1 where all are 0."""
    values = np.asarray(values, dtype=float)
    squares = len(values) * np.sum(values**2)
    return float(values.sum() ** 2 / squares) if squares else 1.0


def _means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Mean of each group that has anybody."""
    counts = np.bincount(groups)
    sums = np.bincount(groups, weights=values)
    return sums[counts > 0] / counts[counts > 0]
