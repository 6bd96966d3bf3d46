"""Confidence intervals over replications, and how many replications an answer takes.

Policies are simulated on the same requests, replication by replication, so a comparison of two is an interval of their
paired differences or of a function of their means that leaves out one replication of both at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr
from scipy import special

CONFIDENCE = 0.95
POWER = 0.9
"""Probability with which a number of replications is to decide an order."""

Interval = tuple[xr.DataArray, xr.DataArray, xr.DataArray]
"""Estimate, low and high end."""
ESTIMATE = ("value", "low", "high")
"""Labels of the three where they stand along one dimension, ``estimate``."""


def mean_interval(values: xr.DataArray, dim: str = "seed", confidence: float = CONFIDENCE) -> Interval:
    """Mean over replications with its Student interval.

    Parameters
    ----------
    values : xarray.DataArray
        One value a replication. For a paired comparison, the differences.
    dim : str
        The dimension of the replications, n >= 2; with one replication the interval is NaN.
    confidence : float
        Coverage, two-sided.

    Returns
    -------
    mean, low, high : xarray.DataArray
        Without ``dim``.
    """
    n = values.sizes[dim]
    mean = values.mean(dim)
    error = values.std(dim, ddof=1) / np.sqrt(n) if n > 1 else mean * np.nan
    half = student(n, confidence) * error
    return mean, mean - half, mean + half


def jackknife(
    function: Callable[..., xr.DataArray], *columns: xr.DataArray, dim: str = "seed"
) -> tuple[xr.DataArray, xr.DataArray]:
    """A function of means over paired replications, and its standard error by the delete-one jackknife.

    Parameters
    ----------
    function : callable
        Takes one array of means for each column and works element by element, such as a ratio.
    *columns : xarray.DataArray
        One value a replication each; the same replications in all.
    dim : str
        The dimension of the replications; with a single one the error is NaN.

    Returns
    -------
    value, standard_error : xarray.DataArray
        Without ``dim``. For a plain mean the error is the usual one. (Efron & Tibshirani, An Introduction to the
        Bootstrap, 1993, chapter 11.)
    """
    n = columns[0].sizes[dim]
    value = function(*(column.mean(dim) for column in columns))
    if n < 2:
        return value, value * np.nan
    without = function(*((column.sum(dim) - column) / (n - 1) for column in columns))
    return value, np.sqrt((n - 1) / n * ((without - without.mean(dim)) ** 2).sum(dim, skipna=False))


def function_interval(
    function: Callable[..., xr.DataArray], *columns: xr.DataArray, dim: str = "seed", confidence: float = CONFIDENCE
) -> Interval:
    """`jackknife` as an interval: the value, and Student's t times the error to either side."""
    value, error = jackknife(function, *columns, dim=dim)
    half = student(columns[0].sizes[dim], confidence) * error
    return value, value - half, value + half


def median_interval(values: xr.DataArray, dim: str = "window", confidence: float = CONFIDENCE) -> Interval:
    """Median with an interval between order statistics, which assumes nothing about the distribution.

    values: one value a replication. The interval covers at least as often as ``confidence`` says; where there are too
    few values for that (fewer than six at 95 %) it is NaN. (`scipy.stats.quantile_test`; Conover, Practical
    Nonparametric Statistics, 1999, section 3.2.)
    """

    from scipy import stats  # takes as long to import as the rest of the package; most who import this need it not

    def ends(sample: np.ndarray) -> np.ndarray:
        low, high = stats.quantile_test(sample, p=0.5).confidence_interval(confidence)
        return np.array([low, high])

    found = xr.apply_ufunc(ends, values, input_core_dims=[[dim]], output_core_dims=[["end"]], vectorize=True)
    return values.median(dim), found.isel(end=0), found.isel(end=1)


def stacked(interval: Interval) -> xr.DataArray:
    """Value, low and high along the dimension ``estimate``."""
    return xr.concat(interval, xr.DataArray(list(ESTIMATE), dims="estimate", name="estimate"))


def student(n: int, confidence: float = CONFIDENCE) -> float:
    """Standard errors from the mean of n replications to either end of its interval; NaN for n = 1."""
    return float(special.stdtrit(n - 1, (1 + confidence) / 2)) if n > 1 else np.nan


def seeds_for_width(variation: float, width: float, confidence: float = CONFIDENCE) -> float:
    """The fewest replications whose interval reaches no further than ``width`` to either side of the estimate.

    variation: standard deviation of one replication, in the units of ``width`` (both relative, for instance). Infinite
    or NaN where the variation is.
    """
    if not np.isfinite(variation):
        return float(variation)
    n = max(2, int((special.ndtri((1 + confidence) / 2) * variation / width) ** 2))  # never too many
    while student(n, confidence) * variation > width * np.sqrt(n):
        n += 1
    return float(n)


def seeds_to_decide(difference: float, deviation: float, power: float = POWER, confidence: float = CONFIDENCE) -> float:
    """The fewest replications whose interval of a difference excludes zero with probability ``power``.

    difference, deviation: mean and standard deviation of the difference in one replication, taken for the truth.
    Infinite where the difference is 0, NaN where one of them is. The power is the noncentral t distribution's (Cohen,
    Statistical Power Analysis for the Behavioral Sciences, 1988, chapter 2), for large numbers the normal's.
    """
    if np.isnan(difference) or np.isnan(deviation):
        return np.nan
    if difference == 0:
        return np.inf
    from scipy import stats  # here, as in `median_interval`

    effect = abs(difference) / deviation if deviation else np.inf
    if effect == np.inf:
        return 2.0
    normal = ((special.ndtri((1 + confidence) / 2) + special.ndtri(power)) / effect) ** 2
    if normal > 1000:
        return float(np.ceil(normal))
    n = max(2, int(normal))  # Student's takes a few more, never fewer
    while stats.nct.sf(student(n, confidence), n - 1, effect * np.sqrt(n)) < power:
        n += 1
    return float(n)
