"""How a claim is judged: numbers by their distance from the paper's, statements by paired tests.

Numbers are reproduced within 15 % of the paper's value and close within 30 %. The paper averages over 100 seeds as well, so
its values carry chance errors like ours: beside the percentage stands the distance in combined standard errors.

A statement is taken apart into comparisons, each made at every grid point that it speaks of.

* An *order* (below, rises, falls) holds at a point if the 95 % Student interval of the paired difference excludes zero.
* A *clear* difference ("much", "markedly", "jumps") is an order whose means differ by more than a number may, 15 % of the
  smaller one.
* *Closeness* ("close", "flat", "barely", "stable") is judged as numbers are: the means lie within 15 % (reproduced) or 30 %
  (close) of each other at every point.

Orders and clear differences are reproduced if they hold at every point, close if at 80 % of them or more. A statement is
as good as its weakest part. Beside the verdict stands each comparison's tightest point with its interval; the intervals
of closeness and of how large a difference is do not enter the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from qba.intervals import Interval, function_interval, jackknife, mean_interval, seeds_to_decide, student

REPRODUCED, CLOSE, NOT_REPRODUCED, NEEDS_DATA = "reproduced", "close", "not reproduced", "needs data"
GRADES = (REPRODUCED, CLOSE, NOT_REPRODUCED)
WITHIN, NEARLY_WITHIN = 0.15, 0.30
MOST = 0.8
PAPER_SEEDS = 100


@dataclass(frozen=True)
class Comparison:
    """One comparison of a statement at its tightest point, over paired seeds.

    ``value`` with ``low`` and ``high`` (95 %) is a difference that should be above zero (in seconds), or a relative
    difference (in %) that should be above the tolerance, or within it; the ends are None where nothing is random.
    ``margin`` is how many half-widths of its interval the value could move before the verdict here changed: positive where
    the comparison holds. ``seeds`` would decide an order, one way or the other, with a probability of 90 %; None where no
    number would, and for what is no order.
    """

    text: str
    where: str
    value: float
    low: float | None
    high: float | None
    unit: str
    margin: float | None
    seeds: int | None = None


@dataclass(frozen=True)
class Finding:
    """What the results say about one claim.

    ``reproduced`` is our number, or for a statement a short text; ``low`` and ``high`` are the ends of the number's 95 %
    interval. These, ``standard_error`` and ``combined_se_distance`` are None where there is none to give. ``comparisons``
    are a statement's, the tightest first. ``would_be``: how a row that needs data is graded on the stand-in; None for others.
    """

    status: str
    reproduced: float | str
    standard_error: float | None = None
    combined_se_distance: float | None = None
    note: str = ""
    low: float | None = None
    high: float | None = None
    comparisons: tuple[Comparison, ...] = ()
    would_be: str | None = None


def grade_number(value: float, paper: float) -> str:
    """Status of a number by its relative distance from the paper's."""
    distance = round(abs(value / paper - 1), 12)  # 0.85 is 15 % below 1, though not in binary
    return REPRODUCED if distance <= WITHIN else CLOSE if distance <= NEARLY_WITHIN else NOT_REPRODUCED


def number(paper: float, function: Callable[..., float], *columns: xr.DataArray) -> Finding:
    """Judge ``function`` of the seed means of the columns, each of shape (seed,).

    The standard error is the delete-one jackknife's over paired seeds, and the interval Student's with it; for a plain
    mean both are the usual ones.
    """
    n = columns[0].sizes["seed"]
    value, error = (float(x) for x in jackknife(function, *columns))
    if not np.isfinite(error):  # a single replication
        return Finding(grade_number(value, paper), value)
    half = student(n) * error
    ends = {"low": value - half, "high": value + half}
    if not (value and error):  # nothing to scale the paper's error by
        return Finding(grade_number(value, paper), value, error, **ends)
    paper_error = error * np.sqrt(n / PAPER_SEEDS) * abs(paper / value)
    distance = (value - paper) / float(np.hypot(error, paper_error))
    return Finding(grade_number(value, paper), value, error, float(distance), **ends)


@dataclass
class Statement:
    """The parts of a statement, collected one by one."""

    grades: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)

    def below(self, text: str, lower: xr.DataArray, upper: xr.DataArray) -> Statement:
        """``lower`` < ``upper`` at each point, in paired replications (dimension ``seed``); both in seconds."""
        difference = upper - lower
        self.comparisons.append(_tightest_order(text, difference))
        return self.holds(text, significantly_below(lower, upper))

    def clearly_below(self, text: str, lower: xr.DataArray, upper: xr.DataArray) -> Statement:
        """``lower`` is below ``upper``, and by more than the tolerance of a number."""
        apart = upper.mean("seed") > (1 + WITHIN) * lower.mean("seed")
        excess = function_interval(lambda low, high: 100 * (high / low - 1), lower, upper)
        at = int(excess[0].values.argmin())
        self.comparisons.append(_relative(text, excess, at, lambda value: value - 100 * WITHIN))
        return self.holds(text, significantly_below(lower, upper) & apart)

    def holds(self, text: str, points: xr.DataArray) -> Statement:
        """A condition that is simply true or false at each point."""
        points = xr.DataArray(points)
        share = float(points.mean()) if points.size else 0.0
        self.grades.append(REPRODUCED if share == 1 else CLOSE if share >= MOST else NOT_REPRODUCED)
        self.texts.append(f"{text}: {int(points.sum())} of {points.size}")
        if share < 1:
            self.misses.append(f"{text}: not at {_places(~points)}")
        return self

    def close(self, text: str, values: xr.DataArray, reference: xr.DataArray) -> Statement:
        """The means of ``values`` and ``reference`` over ``seed`` (if they have it) agree at each point."""
        ratio = _mean(values) / _mean(reference)
        at = int(np.abs(np.log(ratio.values)).argmax())
        worst = float(ratio.values.flat[at])
        found = (100 * (ratio - 1),) * 3
        if "seed" in values.dims and "seed" in reference.dims:
            found = function_interval(lambda mine, theirs: 100 * (mine / theirs - 1), values, reference)
        self.comparisons.append(_relative(text, found, at, lambda value: 100 * WITHIN - abs(value)))
        self.grades.append(grade_number(worst, 1.0))
        self.texts.append(f"{text}: {worst - 1:+.0%} at the worst")
        if self.grades[-1] != REPRODUCED:
            self.misses.append(f"{text}: {worst - 1:+.0%} at the worst")
        return self

    def finding(self, note: str = "") -> Finding:
        """The statement's status, what was found, and where it fails."""
        status = max(self.grades, key=GRADES.index)
        tightest = sorted(self.comparisons, key=lambda c: np.inf if c.margin is None else c.margin)
        note = ". ".join(filter(None, [note, *self.misses]))
        return Finding(status, "; ".join(self.texts), note=note, comparisons=tuple(tightest))


def significantly_below(lower: xr.DataArray, upper: xr.DataArray) -> xr.DataArray:
    """Where the interval of the paired difference (dimension ``seed``) shows ``lower`` below ``upper``."""
    _, low, _ = mean_interval(upper - lower)
    return low > 0


def _mean(values: xr.DataArray) -> xr.DataArray:
    return values.mean("seed") if "seed" in values.dims else values


def _tightest_order(text: str, difference: xr.DataArray) -> Comparison:
    """The point where a paired difference (dimension ``seed``) is the fewest half-widths above zero.

    It holds where its interval is, so one half-width does not count for the margin.
    """
    mean, low, high = mean_interval(difference)
    with np.errstate(divide="ignore", invalid="ignore"):
        margins = np.nan_to_num((mean / (mean - low)).values, nan=-np.inf) - 1  # no scatter, no difference: no order
    at = int(margins.argmin())
    deviation = float(difference.std("seed", ddof=1).values.flat[at]) if difference.sizes["seed"] > 1 else np.nan
    seeds = seeds_to_decide(float(mean.values.flat[at]), deviation)
    return Comparison(
        text, *_point(mean, low, high, at), "s", _finite(margins.flat[at]), int(seeds) if np.isfinite(seeds) else None
    )


def _relative(text: str, interval: Interval, at: int, inside: Callable[[float], float]) -> Comparison:
    """A relative difference in %; ``inside``: how far a value lies on the right side of the tolerance."""
    where, value, low, high = _point(*interval, at)
    half = 0.0 if low is None else (high - low) / 2
    return Comparison(text, where, value, low, high, "%", _finite(inside(value) / half) if half else None)


def _point(mean: xr.DataArray, low: xr.DataArray, high: xr.DataArray, at: int) -> tuple:
    """Where one point lies, its value and the ends of its interval (None where there is none)."""
    value, *ends = (float(part.values.flat[at]) for part in (mean, low, high))
    if not all(map(np.isfinite, ends)) or ends[0] == ends[1]:
        ends = [None, None]
    where = _place(mean.stack(point=mean.dims)[at], mean.dims) if mean.dims else ""
    return where, value, *ends


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _places(failing: xr.DataArray) -> str:
    """The grid points where a boolean array is true, in words."""
    if not failing.dims:
        return "the one point tested"
    stacked = failing.stack(point=failing.dims)
    stacked = stacked[stacked.values]
    names = [_place(stacked[i], failing.dims) for i in range(stacked.size)]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _place(point: xr.DataArray, dims: Iterable[Hashable]) -> str:
    return " ".join(f"{d} {_short(point[d].item())}" for d in dims if d in point.coords)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
