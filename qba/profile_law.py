"""Finding the batch-time law with the least robust cost: the search over knees behind `qba.fit_profile`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

HUBER = 1.345
"""Residual, in scales, from which on the pull of a batch stays the same: 95 % efficient for normal errors."""
FINEST = 1e-4
"""Least scale of the residuals (relative): no batch takes the same time again to more digits, and exact data can be fitted."""
KNEE_SEEN, RISE_SEEN = 3.84, 8.85
"""Twice the gain in log-likelihood from which on a knee, or a rise, is taken as seen, at 5 %. Without a rise the knee
could be anywhere, and a gain that was searched for must be larger (Andrews, Econometrica 61, 1993, table I)."""
_ELEMENTS = 300_000
"""Candidate knees times batches held at once."""


class Law(NamedTuple):
    """The three parameters of the batch-time law: seconds, seconds a token, tokens."""

    overhead: float
    slope: float
    knee: float

    def seconds(self, tokens: ArrayLike) -> np.ndarray:
        """T = c0 + a max(0, b - b0) for each number of tokens."""
        return self.overhead + self.slope * np.maximum(0.0, np.asarray(tokens, dtype=float) - self.knee)


def search(tokens: np.ndarray, logs: np.ndarray) -> tuple[Law, float]:
    """The law with the least robust cost over all knees, and the scale of the residuals that goes with it."""
    knees = _candidates(tokens)
    overhead, slope = np.full(knees.size, np.exp(np.median(logs))), np.zeros(knees.size)
    scale = np.inf  # least squares first; the outliers' pull then shrinks from pass to pass
    for _ in range(30):
        overhead, slope, cost = _lines(tokens, logs, knees, scale, overhead, slope)
        law = _best(knees, overhead, slope, cost)
        before, scale = scale, residual_scale(logs - np.log(law.seconds(tokens)))
        if abs(scale - before) <= 1e-4 * scale:
            break
    for _ in range(6):  # each round divides the bracket around the best knee by ten
        best = int(np.searchsorted(knees, law.knee))
        low, high = knees[max(best - 1, 0)], knees[min(best + 1, knees.size - 1)]
        knees = np.unique(np.append(np.linspace(low, high, 21), law.knee))
        start = np.full(knees.size, law.overhead), np.full(knees.size, law.slope)
        law = _best(knees, *_lines(tokens, logs, knees, scale, *start))
    return law, residual_scale(logs - np.log(law.seconds(tokens)))


def seen(tokens: np.ndarray, logs: np.ndarray, law: Law, scale: float) -> tuple[Law, bool]:
    """The law, or the constant time that fits as well where the batches show no rise; and whether they show a knee."""
    knees = np.array([tokens[0], tokens[-1], law.knee])
    start = np.full(3, law.overhead), np.array([law.slope, 0.0, law.slope])
    overhead, _, cost = _lines(tokens, logs, knees, scale, *start)
    line, flat = 2 * (cost[:2] - cost[2]) / scale**2
    if flat < RISE_SEEN:
        law = Law(overhead[1], 0.0, tokens[-1])
    return Law(*map(float, law)), bool(line >= KNEE_SEEN)


def _best(knees: np.ndarray, overhead: np.ndarray, slope: np.ndarray, cost: np.ndarray) -> Law:
    best = int(np.argmin(cost))
    return Law(overhead[best], slope[best], knees[best])


def _candidates(tokens: np.ndarray) -> np.ndarray:
    """Knees to try: the sizes measured, thinned where there are many. Below the least the law would not differ."""
    sizes = np.unique(tokens)
    most = max(24, _ELEMENTS // tokens.size)
    return sizes if sizes.size <= most else sizes[np.linspace(0, sizes.size - 1, most).round().astype(int)]


def residual_scale(residuals: np.ndarray) -> float:
    """Standard deviation of normal residuals from their median size, three of which the parameters take up."""
    n = residuals.size
    return max(float(np.median(np.abs(residuals))) * 1.4826 * np.sqrt(n / (n - 3)), FINEST)


def _lines(
    tokens: np.ndarray, logs: np.ndarray, knees: np.ndarray, scale: float, overhead: np.ndarray, slope: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each knee, c0 > 0 and a >= 0 with the least Huber cost in logarithms, and that cost: arrays over knees.

    Gauss-Newton steps with weights, two equations in two unknowns at each knee, from the given start.
    """
    beyond = np.maximum(0.0, tokens - knees[:, None])
    for _ in range(60):
        time = overhead[:, None] + slope[:, None] * beyond
        off = logs - np.log(time)
        weight = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(off), 1e-300)) if np.isfinite(scale) else 1.0
        by_overhead, by_slope = 1 / time, beyond / time
        cc, ca, aa, c, a = (
            np.sum(weight * product, axis=1)
            for product in (
                by_overhead**2, by_overhead * by_slope, by_slope**2, by_overhead * off, by_slope * off
            )
        )  # fmt: skip
        determinant = cc * aa - ca**2
        solvable = determinant > 1e-12 * cc * aa  # not where no batch, or a single size, lies beyond the knee
        step = np.where(solvable, (cc * a - ca * c) / np.where(solvable, determinant, 1.0), 0.0)
        step = np.maximum(step, -slope)
        jump = np.clip((c - ca * step) / cc, -overhead / 2, 2 * overhead)
        overhead, slope = overhead + jump, slope + step
        if np.all(np.abs(jump) <= 1e-8 * overhead) and np.all(np.abs(step) <= 1e-8 * slope):
            break
    off = np.abs(logs - np.log(overhead[:, None] + slope[:, None] * beyond))
    if not np.isfinite(scale):
        return overhead, slope, np.sum(off**2, axis=1) / 2
    bend = HUBER * scale
    return overhead, slope, np.sum(np.where(off <= bend, off**2 / 2, bend * (off - bend / 2)), axis=1)
