"""Measures of a run by the names that users write, bounds and objectives made of them, and how sure their values are.

A measure is a statistic of a quantity over all requests or one true class: ``mean``, ``p99``, ``p99_long``, ``ttft_p95``,
``latency_mean_short``. Without a quantity it is of the waiting time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from qba.engine.simulate import Run
from qba.errors import InputError
from qba.intervals import student
from qba.order_statistics import quantiles
from qba.requests import Requests

QUANTITIES = {"wait": "waiting time", "ttft": "time to first token", "latency": "end-to-end latency"}
MEASURE = re.compile(r"(?:(wait|ttft|latency)_)?(mean|p\d{1,2}(?:\.\d+)?)(?:_(short|long))?")
BOUND = re.compile(r"(\S+?)\s*(?:<=|=<|≤|<)\s*(\S+?)\s*s?")
OBJECTIVE = re.compile(r"min(?:imi[sz]e)?\s+(\S+)(?:\s+(?:s\.?\s?t\.?|subject to)\s+(.+))?")
KNOWN = (
    "mean, p50, p95, p99 and the like, with wait_, ttft_ or latency_ before it and _short or _long after it if wanted"
)

WINDOWS = 20
"""Windows that the intervals rest on, where there are requests enough."""
LEAST_PER_WINDOW = 50
FEWEST_WINDOWS = 5


@dataclass(frozen=True)
class Measure:
    """A statistic of one quantity over one class.

    quantity: of `QUANTITIES`. level: of the quantile, or None for the mean. group: "", "short" or "long", by true class.
    """

    quantity: str
    level: float | None
    group: str

    @property
    def name(self) -> str:
        """As users write it."""
        prefix = "" if self.quantity == "wait" else f"{self.quantity}_"
        return f"{prefix}{self._statistic}{self.group and f'_{self.group}'}"

    @property
    def variable(self) -> str:
        """Its name in datasets, as in `qba.summarize`."""
        return f"{self.quantity}_{self._statistic}{self.group and f'_true_{self.group}'}_s"

    @property
    def text(self) -> str:
        """In words."""
        words = "mean" if self.level is None else self._statistic.upper()
        return f"{words} {QUANTITIES[self.quantity]}{self.group and f', true-{self.group}'}"

    @property
    def _statistic(self) -> str:
        return "mean" if self.level is None else f"p{100 * self.level:.6g}"

    def sample(self, requests: Requests, run: Run) -> np.ndarray:
        """The quantity of each request, seconds, shape (n,)."""
        ends = {"wait": run.start_s, "ttft": run.first_token_s, "latency": run.finish_s}
        return ends[self.quantity] - requests.arrival_s

    def members(self, requests: Requests) -> np.ndarray | None:
        """Which requests count, bool of shape (n,); None for all."""
        return {"": None, "short": ~requests.true_long, "long": requests.true_long}[self.group]


@dataclass(frozen=True)
class Bound:
    """A measure that must not exceed ``limit`` seconds."""

    measure: Measure
    limit: float

    def __str__(self) -> str:
        return f"{self.measure.name} <= {self.limit:g}"


@dataclass(frozen=True)
class Objective:
    """A measure to make small, under bounds on others."""

    measure: Measure
    bounds: tuple[Bound, ...]

    def __str__(self) -> str:
        conditions = " and ".join(map(str, self.bounds))
        return f"min {self.measure.name}{conditions and f' s.t. {conditions}'}"


def measure(text: str) -> Measure:
    """The measure of that name. Raises InputError for another text."""
    found = MEASURE.fullmatch(text.strip().lower())
    if not found or (found[2] != "mean" and float(found[2][1:]) == 0):
        raise InputError(f"no measure {text!r}: there are {KNOWN}")
    quantity, statistic, group = found.groups()
    return Measure(quantity or "wait", None if statistic == "mean" else float(statistic[1:]) / 100, group or "")


def bound(text: str) -> Bound:
    """A bound such as ``p99_long <= 2.0`` (seconds). Raises InputError for another text."""
    found = BOUND.fullmatch(text.strip())
    try:
        limit = float(found[2]) if found else -1.0
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise InputError(f"bound {text!r}, but it must be a measure and seconds, such as 'p99_long <= 2.0'")
    return Bound(measure(found[1]), limit)


def objective(text: str) -> Objective:
    """An objective such as ``min mean s.t. p99_long <= 2.0 and p99 <= 4``. Raises InputError for another text."""
    found = OBJECTIVE.fullmatch(text.strip())
    if not found:
        raise InputError(f"objective {text!r}, but it must be such as 'min mean s.t. p99_long <= 2.0'")
    conditions = re.split(r"\s*(?:,|;|\band\b|&)\s*", found[2]) if found[2] else []
    return Objective(measure(found[1]), tuple(bound(condition) for condition in conditions))


def window_edges(n: int, count: int = WINDOWS) -> np.ndarray:
    """Edges of windows of (almost) equal request count, shape (windows + 1,): fewer where there are few requests."""
    windows = max(1, min(count, n // LEAST_PER_WINDOW))
    return np.linspace(0, n, (windows if windows >= FEWEST_WINDOWS else 1) + 1).astype(int)


def estimate(
    values: np.ndarray,
    members: np.ndarray | None,
    level: float | None,
    edges: np.ndarray,
    chosen: np.ndarray | None = None,
) -> tuple[float, float, float]:
    """A mean or quantile of one run, with a 95 % interval by batch means.

    Within a run neighbours wait alike, so that requests are no sample; windows of many requests almost are. The mean is
    the ratio of the windows' sums to their counts, and its error the delete-one jackknife's. For a quantile the same is
    done with the share of requests above it, and the interval reaches to the quantiles at the ends of that share's
    (Heidelberger & Lewis, Operations Research 32, 1984). The interval holds for traffic of this kind: a trace of one day
    cannot tell of another.

    Parameters
    ----------
    values : float array of shape (n,)
        In order of arrival.
    members : bool array of shape (n,), optional
        Which count. Default: all.
    level : float or None
        Of the quantile; None for the mean.
    edges : int array of shape (windows + 1,)
        See `window_edges`.
    chosen : int array, optional
        Windows to look at. Default: all.

    Returns
    -------
    value, low, high : float
        NaN where there is no request, the ends also where there are fewer than 2 windows with one.
    """
    parts = range(len(edges) - 1) if chosen is None else chosen
    cut = [slice(edges[i], edges[i + 1]) for i in parts]
    samples = [values[rows] if members is None else values[rows][members[rows]] for rows in cut]
    samples = [sample for sample in samples if len(sample)]
    if not samples:
        return np.nan, np.nan, np.nan
    counts = np.array([len(sample) for sample in samples], dtype=float)
    pooled = np.concatenate(samples) if len(samples) > 1 else samples[0]
    if level is None:
        half = _half_width(np.array([sample.sum() for sample in samples]), counts)
        value = float(pooled.mean())
        return value, np.maximum(0.0, value - half), value + half  # times cannot be negative
    (value,) = quantiles(pooled, (level,))
    half = _half_width(np.array([np.count_nonzero(sample > value) for sample in samples], dtype=float), counts)
    if np.isnan(half):
        return value, np.nan, np.nan
    low, high = quantiles(pooled, (max(0.0, level - half), min(1.0, level + half)))
    return value, low, high


def estimates(
    requests: Requests, run: Run, measures: tuple[Measure, ...], edges: np.ndarray, chosen: np.ndarray | None = None
) -> np.ndarray:
    """`estimate` of each measure of a run: shape (measures, 3)."""
    return np.array([estimate(m.sample(requests, run), m.members(requests), m.level, edges, chosen) for m in measures])


def check_members(requests: Requests, measures: Iterable[Measure]) -> None:
    """Raise InputError for a measure over a class in which there is nobody."""
    for m in measures:
        members = m.members(requests)
        if members is not None and not members.any():
            raise InputError(
                f"no request is {m.group} here, so {m.name} has no value: see qba describe for the lengths"
            )


class Windowed:
    """One measure of a run by windows, to be compared with another run's.

    Of a mean the windows' sums; of a quantile how many requests lie above ``limit``, by default the run's own quantile: of two
    runs the one that has fewer above the same limit has the lower quantile.
    """

    def __init__(
        self,
        requests: Requests,
        run: Run,
        measure: Measure,
        edges: np.ndarray,
        chosen: np.ndarray,
        limit: float | None = None,
    ) -> None:
        values, members = measure.sample(requests, run), measure.members(requests)
        samples = [values[edges[i] : edges[i + 1]] for i in chosen]
        if members is not None:
            samples = [sample[members[edges[i] : edges[i + 1]]] for i, sample in zip(chosen, samples)]
        pooled = np.concatenate(samples)
        self.limit = limit
        if measure.level is not None and limit is None:
            self.limit = quantiles(pooled, (measure.level,))[0] if len(pooled) else np.nan
        counted = [sample if measure.level is None else sample > self.limit for sample in samples]
        self.sums = np.array([float(np.sum(part)) for part in counted])
        self.counts = np.array([len(sample) for sample in samples], dtype=float)

    def gain(self, other: Windowed) -> list[float]:
        """How much lower the other run is, relative to this one: value, low, high (95 %, paired jackknife over windows)."""
        total = self.sums.sum()
        lower = self.sums - other.sums
        if not total:
            return [0.0, 0.0, 0.0]
        half = _half_width(lower, self.counts) * self.counts.sum() / total
        return [lower.sum() / total, lower.sum() / total - half, lower.sum() / total + half]


def _half_width(sums: np.ndarray, counts: np.ndarray) -> float:
    """Of the 95 % interval of a ratio of sums, by the jackknife over windows; NaN for fewer than two."""
    n = len(sums)
    if n < 2 or (counts == counts.sum()).any():
        return np.nan
    without = (sums.sum() - sums) / (counts.sum() - counts)
    return float(student(n) * np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))


def attrs(units: str, text: str) -> dict[str, str]:
    """Labels of a variable."""
    return {"units": units, "long_name": text}
