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
as good as its weakest part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from qba.intervals import mean_interval

REPRODUCED, CLOSE, NOT_REPRODUCED, NEEDS_DATA = "reproduced", "close", "not reproduced", "needs data"
GRADES = (REPRODUCED, CLOSE, NOT_REPRODUCED)
WITHIN, NEARLY_WITHIN = 0.15, 0.30
MOST = 0.8
PAPER_SEEDS = 100


@dataclass(frozen=True)
class Finding:
    """What the results say about one claim.

    ``reproduced`` is our number, or for a statement a short text; ``standard_error`` and ``combined_se_distance`` are None
    where there is none to give.
    """

    status: str
    reproduced: float | str
    standard_error: float | None = None
    combined_se_distance: float | None = None
    note: str = ""


def grade_number(value: float, paper: float) -> str:
    """Status of a number by its relative distance from the paper's."""
    distance = round(abs(value / paper - 1), 12)  # 0.85 is 15 % below 1, though not in binary
    return REPRODUCED if distance <= WITHIN else CLOSE if distance <= NEARLY_WITHIN else NOT_REPRODUCED


def number(paper: float, function: Callable[..., float], *columns: xr.DataArray) -> Finding:
    """Judge ``function`` of the seed means of the columns, each of shape (seed,).

    The standard error is the delete-one jackknife's over paired seeds; for a plain mean that is the usual one.
    """
    table = np.stack([column.values for column in columns])
    n = table.shape[1]
    value = function(*table.mean(axis=1))
    without = (table.sum(axis=1, keepdims=True) - table) / (n - 1)
    replicates = np.array([function(*means) for means in without.T])
    error = float(np.sqrt((n - 1) / n * np.sum((replicates - replicates.mean()) ** 2)))
    if not (value and error):  # nothing to scale the paper's error by
        return Finding(grade_number(value, paper), float(value), error)
    paper_error = error * np.sqrt(n / PAPER_SEEDS) * abs(paper / value)
    distance = (value - paper) / float(np.hypot(error, paper_error))
    return Finding(grade_number(value, paper), float(value), error, float(distance))


@dataclass
class Statement:
    """The parts of a statement, collected one by one."""

    grades: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)

    def below(self, text: str, lower: xr.DataArray, upper: xr.DataArray) -> Statement:
        """``lower`` < ``upper`` at each point, in paired replications (dimension ``seed``)."""
        return self.holds(text, significantly_below(lower, upper))

    def clearly_below(self, text: str, lower: xr.DataArray, upper: xr.DataArray) -> Statement:
        """``lower`` is below ``upper``, and by more than the tolerance of a number."""
        apart = upper.mean("seed") > (1 + WITHIN) * lower.mean("seed")
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
        worst = float(ratio.values.flat[np.abs(np.log(ratio.values)).argmax()])
        self.grades.append(grade_number(worst, 1.0))
        self.texts.append(f"{text}: {worst - 1:+.0%} at the worst")
        if self.grades[-1] != REPRODUCED:
            self.misses.append(f"{text}: {worst - 1:+.0%} at the worst")
        return self

    def finding(self, note: str = "") -> Finding:
        """The statement's status, what was found, and where it fails."""
        status = max(self.grades, key=GRADES.index)
        return Finding(status, "; ".join(self.texts), note=". ".join(filter(None, [note, *self.misses])))


def significantly_below(lower: xr.DataArray, upper: xr.DataArray) -> xr.DataArray:
    """Where the interval of the paired difference (dimension ``seed``) shows ``lower`` below ``upper``."""
    _, low, _ = mean_interval(upper - lower)
    return low > 0


def _mean(values: xr.DataArray) -> xr.DataArray:
    return values.mean("seed") if "seed" in values.dims else values


def _places(failing: xr.DataArray) -> str:
    """The grid points where a boolean array is true, in words."""
    if not failing.dims:
        return "the one point tested"
    stacked = failing.stack(point=failing.dims)
    stacked = stacked[stacked.values]
    names = []
    for i in range(stacked.size):
        one = stacked[i]
        names.append(" ".join(f"{d} {_short(one[d].item())}" for d in failing.dims if d in one.coords))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
