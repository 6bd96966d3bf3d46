"""Fitting the batch-time law T = c0 + a max(0, b - b0) to measured batches.

What is fitted are logarithms of times, so that errors count in per cent: a batch of 9 ms weighs like one of 200 ms, and
ten times too slow like ten times too fast. Huber's loss bounds the pull of one batch. The knee is searched over the
whole range of sizes, never from a start (`qba.profile_law`).

The intervals come from the sandwich estimate of an M-estimator's covariance, not from a bootstrap: it needs no random
numbers and one fit instead of hundreds, it holds where the scatter differs from size to size, and whitened along the
sizes (Andrews & Monahan, Econometrica 60, 1992) it allows for steps, such as those of a GPU's tiles, that move a whole
range of sizes together. (Huber & Ronchetti, Robust Statistics, 2009, chapter 7; with the correction HC3 for few batches,
MacKinnon & White, Journal of Econometrics 29, 1985; Feder, Annals of Statistics 3, 1975, for the knee.)
"""

from __future__ import annotations

import warnings

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from qba.errors import InputError
from qba.intervals import ESTIMATE, student
from qba.profile_law import HUBER, Law, residual_scale, search, seen

LEAST_BATCHES = 5
LEAST_SIZES = 3
OUTLIER = 5.0
"""Residual, in scales, from which on a batch counts as an outlier."""
CURVE_POINTS = 120


class ProfileWarning(UserWarning):
    """The measured batches leave a parameter of the law open; the message says which and what is known instead."""


def fit_profile(tokens: ArrayLike, seconds: ArrayLike, *, name: str = "measured") -> xr.Dataset:
    """Fit c0, a and b0 of the batch-time law to measured batches; robust to outliers, with 95 % intervals.

    Parameters
    ----------
    tokens : array of shape (n,)
        b, tokens in each batch; n >= 5, with at least 3 different values.
    seconds : array of shape (n,)
        T, how long each took, > 0.
    name : str
        What is measured; it names the profile and heads its figure.

    Returns
    -------
    xarray.Dataset
        ``batch_overhead_s`` (c0 > 0), ``token_time_s`` (a >= 0), ``knee_tokens`` (b0, from the smallest to the largest
        size measured) and ``intercept_s`` (c0 - a b0), each over ``estimate``: value, low, high.
        Over ``batch``, sorted by tokens: ``tokens``, ``seconds``, ``fitted_s``, ``outlier`` (off by more than 5 scales).
        Over ``point``: ``curve_tokens`` and the law there with its pointwise interval, ``curve_s``.
        Scalars: ``residual_scale`` (robust standard deviation of relative residuals), ``residual_autocorrelation``
        (between neighbouring sizes; large where the law misses steps or a bend) and ``outliers`` (how many).
        ``attrs["name"]``, and ``attrs["notes"]`` with what the data leave open, empty where they leave nothing.

        Where nothing is surely below the knee, c0 and b0 cannot be told apart: their intervals then reach down to a law
        without a knee, and the values are one of many that fit as well. Where nothing is surely above it, the intervals
        of a and b0 have no upper end; where no rise is seen at all, a is 0 and b0 the largest size measured.

        The intervals are those of large samples. Simulated with some tens of batches they cover 88 to 96 %, less where
        few batches lie on one side of the knee. One batch in ten that is ten times too slow moves c0 and a by a fifth of
        the scale, as Huber's loss bounds their pull but keeps it.

    Raises
    ------
    InputError
        For columns of different lengths, too few batches or sizes, or a value that is not a positive number.

    Warns
    -----
    ProfileWarning
        Where no batch is surely below the knee, or none surely above it.
    """
    tokens, seconds = _checked(tokens, seconds)
    order = np.argsort(tokens, kind="stable")
    tokens, logs = tokens[order], np.log(seconds[order])
    law, knee_seen = seen(tokens, logs, *search(tokens, logs))
    residuals = logs - np.log(law.seconds(tokens))
    scale = residual_scale(residuals)
    correlation, covariance = _covariance(tokens, residuals, law, scale)
    ends, notes = _ends(tokens, law, covariance, knee_seen)
    for note in notes:
        warnings.warn(f"fit_profile: {name}: {note}", ProfileWarning, stacklevel=2)
    outlier = np.abs(residuals) > OUTLIER * scale
    return xr.Dataset(
        {
            **{key: ("estimate", list(triple), _LABELS[key]) for key, triple in ends.items()},
            "tokens": ("batch", tokens, _LABELS["tokens"]),
            "seconds": ("batch", seconds[order], _LABELS["seconds"]),
            "fitted_s": ("batch", law.seconds(tokens), _LABELS["fitted_s"]),
            "outlier": ("batch", outlier, _LABELS["outlier"]),
            "curve_s": (("point", "estimate"), _curve(tokens, law, covariance), _LABELS["curve_s"]),
            "residual_scale": ((), scale, _LABELS["residual_scale"]),
            "residual_autocorrelation": ((), correlation, _LABELS["residual_autocorrelation"]),
            "outliers": ((), int(outlier.sum()), _LABELS["outliers"]),
        },
        coords={
            "estimate": ("estimate", list(ESTIMATE), {"units": "1", "long_name": "estimate and ends of its interval"}),
            "curve_tokens": ("point", _sizes(tokens, law), _LABELS["tokens"]),
        },
        attrs={"name": name, "notes": "\n".join(notes)},
    )


_LABELS = {
    key: {"units": units, "long_name": text}
    for key, units, text in (
        ("batch_overhead_s", "s", "time that any batch takes"),
        ("token_time_s", "s/token", "time for each token beyond the knee"),
        ("knee_tokens", "tokens", "tokens that fit into the overhead"),
        ("intercept_s", "s", "overhead less the knee's tokens times their time"),
        ("tokens", "tokens", "tokens in the batch"),
        ("seconds", "s", "measured time of the batch"),
        ("fitted_s", "s", "fitted time of the batch"),
        ("outlier", "1", "off by more than five scales"),
        ("curve_s", "s", "batch time"),
        ("residual_scale", "1", "robust standard deviation of relative residuals"),
        ("residual_autocorrelation", "1", "autocorrelation of residuals between neighbouring sizes"),
        ("outliers", "1", "batches off by more than five scales"),
    )
}


def _checked(tokens: ArrayLike, seconds: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    columns = []
    for name, values in (("tokens", tokens), ("seconds", seconds)):
        try:
            column = np.asarray(values, dtype=float)
        except (TypeError, ValueError):
            raise InputError(f"fit_profile: {name} is {values!r:.60}, but it must be an array of numbers") from None
        if column.ndim != 1:
            raise InputError(f"fit_profile: {name} has shape {column.shape}, but it must have one dimension")
        columns.append(column)
    lengths = [column.size for column in columns]
    if lengths[0] != lengths[1]:
        raise InputError(f"fit_profile: tokens has {lengths[0]} values and seconds {lengths[1]}; each batch needs both")
    if lengths[0] < LEAST_BATCHES:
        raise InputError(f"fit_profile: {lengths[0]} batches, but at least {LEAST_BATCHES} are needed")
    for name, column in zip(("tokens", "seconds"), columns):
        bad = ~(np.isfinite(column) & (column > 0))
        if bad.any():
            first = int(np.argmax(bad))
            raise InputError(f"fit_profile: {name}[{first}] = {column[first]:g}, but it must be a positive number")
    sizes = np.unique(columns[0])
    if sizes.size < LEAST_SIZES:
        raise InputError(
            f"fit_profile: all batches have {' or '.join(f'{size:g}' for size in sizes)} tokens, "
            f"but three parameters need at least {LEAST_SIZES} different sizes"
        )
    return columns[0], columns[1]


# --- uncertainty ------------------------------------------------------------------------------------------------------


def _gradient(tokens: np.ndarray, law: Law) -> np.ndarray:
    """How the logarithm of the law moves with (c0, a, b0): array of shape (n, 3)."""
    time, beyond = law.seconds(tokens), np.maximum(0.0, tokens - law.knee)
    return np.stack([1 / time, beyond / time, -law.slope * (tokens > law.knee) / time], axis=1)


def _covariance(tokens: np.ndarray, residuals: np.ndarray, law: Law, scale: float) -> tuple[float, np.ndarray]:
    """Autocorrelation of the residuals, and the sandwich covariance of (c0, a, b0); NaN where there is none."""
    pull = _pull(residuals, scale)
    n, unit = tokens.size, np.array([law.overhead, law.slope or 1.0, max(law.knee, 1.0)])
    correlation = _autocorrelation(pull)
    free = 3 if law.slope > 0 else 1
    gradient = (_gradient(tokens, law) * unit)[:, :free]  # relative, so that the matrix is well scaled
    inner = np.abs(pull) < HUBER
    bread = gradient.T @ (gradient * inner[:, None]) / scale
    covariance = np.full((3, 3), np.nan)
    if np.linalg.cond(bread) < 1e12:
        inverse = np.linalg.inv(bread)
        leverage = inner * np.einsum("ij,jk,ik->i", gradient, inverse, gradient) / scale
        scores = gradient * (pull / np.maximum(1 - leverage, 1 / n))[:, None]
        alike = correlation if correlation > 2 / np.sqrt(n) else 0.0  # not unless neighbours are surely alike
        fresh = np.concatenate([scores[:1] * np.sqrt(1 - alike**2), scores[1:] - alike * scores[:-1]]) / (1 - alike)
        covariance[:free, :free] = inverse @ (fresh.T @ fresh) @ inverse
    return correlation, covariance * np.outer(unit, unit)


def _pull(residuals: np.ndarray, scale: float) -> np.ndarray:
    return np.clip(residuals / scale, -HUBER, HUBER)


def _autocorrelation(values: np.ndarray) -> float:
    """Between neighbours, with its bias for few values taken off (Kendall, Biometrika 41, 1954); at most 0.95."""
    n, raw = values.size, float(np.sum(values[1:] * values[:-1]) / max(np.sum(values**2), 1e-300))
    return min(raw + (1 + 3 * raw) / n, 0.95)


def _root(variance: np.ndarray) -> np.ndarray:
    """Standard error; rounding can leave the variance of exact data just below 0."""
    return np.sqrt(np.maximum(variance, 0.0))


def _ends(
    tokens: np.ndarray, law: Law, covariance: np.ndarray, knee_seen: bool
) -> tuple[dict[str, tuple[float, float, float]], list[str]]:
    """Value, low and high of each parameter, and a note on each that the data leave open."""
    t = student(tokens.size - 2)  # with as many degrees of freedom as batches less parameters
    half = t * _root(np.diag(covariance))
    intercept = law.overhead - law.slope * law.knee
    direction = np.array([1.0, -law.knee, -law.slope])
    half_intercept = float(t * _root(direction @ covariance @ direction))
    low, high = np.array(law) - half, np.array(law) + half
    low = np.maximum(np.nan_to_num(low, nan=0.0), 0.0)
    notes = []
    if law.slope > 0 and not (knee_seen and low[2] > tokens[0]):
        below = max(0.0, intercept - np.nan_to_num(half_intercept))
        low[0], low[2] = min(low[0], below), 0.0
        notes.append(
            f"no batch is surely below the knee, so c0 and b0 are not known apart, only c0 - a b0 = {intercept:.3g} s; "
            "measure smaller batches"
        )
    if not (low[1] > 0 and high[2] < tokens[-1]):
        high[1] = high[2] = np.inf
        notes.append(
            f"no batch is surely above the knee, so a is not known, only that up to {tokens[-1]:g} tokens "
            "the time hardly rises; measure larger batches"
        )
    names = ("batch_overhead_s", "token_time_s", "knee_tokens")
    ends = {name: (float(v), float(a), float(b)) for name, v, a, b in zip(names, law, low, high)}
    ends["intercept_s"] = (intercept, intercept - half_intercept, intercept + half_intercept)
    return ends, notes


def _sizes(tokens: np.ndarray, law: Law) -> np.ndarray:
    """Where to draw the law: evenly on a logarithmic axis, and at the knee."""
    return np.unique(np.append(np.geomspace(tokens[0], tokens[-1], CURVE_POINTS - 1), law.knee))


def _curve(tokens: np.ndarray, law: Law, covariance: np.ndarray) -> np.ndarray:
    sizes = _sizes(tokens, law)
    gradient = _gradient(sizes, law)
    known = np.isfinite(np.diag(covariance))
    variance = np.einsum("ij,jk,ik->i", gradient[:, known], covariance[np.ix_(known, known)], gradient[:, known])
    error = student(tokens.size - 2) * _root(variance)
    time = law.seconds(sizes)
    return np.stack([time, time * np.exp(-error), time * np.exp(error)], axis=1)
