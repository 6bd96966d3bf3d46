"""Confidence intervals over paired replications."""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy import stats

CONFIDENCE = 0.95


def mean_interval(
    values: xr.DataArray, dim: str = "seed", confidence: float = CONFIDENCE
) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
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
    half = stats.t.ppf((1 + confidence) / 2, n - 1) * error
    return mean, mean - half, mean + half
