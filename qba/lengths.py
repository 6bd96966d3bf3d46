"""Length distributions of prompts and responses, drawn by inverse transform.

Each turns uniform numbers into lengths by its quantile function. Two distributions fed with the same uniform numbers
therefore give lengths in the same order, and a small change of a parameter a small change of every length: comparisons
of workloads, and searches for one, are made under common random numbers (Law, Simulation Modeling and Analysis, 2015,
chapter 11).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from qba.errors import InputError
from qba.validate import MOST, named_parameters, number

MOST_CV = 100
TABLE_POINTS = 4001
"""Points at which a mixture's distribution function is tabulated; one Newton step follows, so that few would do."""
TABLE_REACH = 8.5
"""Standard deviations to which the table reaches: a double below 1 is at most 8.2 of them away."""


@dataclass(frozen=True, repr=False)
class LengthDistribution(ABC):
    """What all have in common. Lengths are positive numbers of tokens; `tokens` makes them whole.

    Parameters
    ----------
    mean : float
        Tokens, before lengths are clipped and rounded.
    at_most : float, optional
        Longer lengths are clipped to this one, at least 1 token.

    Raises
    ------
    InputError
        If a parameter is outside its range; the message names it.
    """

    mean: float
    at_most: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._number("mean", above=0)
        if self.at_most is not None:
            self._number("at_most", at_least=1)

    def _number(self, name: str, **bounds: float) -> None:
        object.__setattr__(self, name, number(type(self).__name__, name, getattr(self, name), **bounds))

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in sorted(fields(self), key=lambda f: f.kw_only))
        return f"{type(self).__name__}({', '.join(f'{name}={v:.12g}' for name, v in given if v is not None)})"

    def quantile(self, u: ArrayLike) -> np.ndarray:
        """Lengths, in tokens but not yet whole, below which the shares ``u`` of all requests lie; ``u`` in [0, 1)."""
        lengths = self._unclipped(np.asarray(u, dtype=float))
        return lengths if self.at_most is None else np.minimum(lengths, self.at_most)

    def tokens(self, u: ArrayLike) -> np.ndarray:
        """`quantile` in whole tokens, at least 1; int64, shape as ``u``."""
        return np.clip(np.rint(self.quantile(u)), 1, MOST + 1.0).astype(np.int64)  # above MOST `Requests` refuses it

    @abstractmethod
    def _unclipped(self, u: np.ndarray) -> np.ndarray:
        """The quantile function before clipping."""


@named_parameters
@dataclass(frozen=True, repr=False)
class Exponential(LengthDistribution):
    """Exponential lengths, with a coefficient of variation of 1."""

    def _unclipped(self, u: np.ndarray) -> np.ndarray:
        return -self.mean * np.log1p(-u)


@dataclass(frozen=True, repr=False)
class _WithVariation(LengthDistribution):
    cv: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("cv", at_least=0, at_most=MOST_CV)


@named_parameters
@dataclass(frozen=True, repr=False)
class LogNormal(_WithVariation):
    """Lognormal lengths of coefficient of variation ``cv``."""

    def _unclipped(self, u: np.ndarray) -> np.ndarray:
        variance = math.log1p(self.cv**2)
        return np.exp(math.log(self.mean) - variance / 2 + math.sqrt(variance) * special.ndtri(u))


@named_parameters
@dataclass(frozen=True, repr=False)
class Gamma(_WithVariation):
    """Gamma lengths of coefficient of variation ``cv``; exponential ones for 1. The slowest to draw."""

    def _unclipped(self, u: np.ndarray) -> np.ndarray:
        if self.cv == 0:
            return np.full_like(u, self.mean)
        return self.mean * self.cv**2 * special.gammaincinv(self.cv**-2, u)


@named_parameters
@dataclass(frozen=True, repr=False)
class Uniform(_WithVariation):
    """Lengths spread evenly over an interval of positive numbers, so ``cv`` is at most 1/√3; see `between`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low < -1e-9 * self.mean:  # 1/√3 itself may round below 0
            raise InputError(
                f"Uniform: cv = {self.cv!r}, but beyond 1/√3 = 0.577 the shortest length would be negative"
            )

    @classmethod
    def between(cls, low: float, high: float, *, at_most: float | None = None) -> Uniform:
        """The distribution from ``low`` to ``high`` tokens."""
        low = number("Uniform", "low", low, at_least=0)
        high = number("Uniform", "high", high, above=low)
        return cls((low + high) / 2, (high - low) / (low + high) / math.sqrt(3), at_most=at_most)

    @property
    def low(self) -> float:
        """The shortest length, tokens."""
        return self.mean * (1 - math.sqrt(3) * self.cv)

    def _unclipped(self, u: np.ndarray) -> np.ndarray:
        return self.mean * (1 + math.sqrt(3) * self.cv * (2 * u - 1))


@named_parameters
@dataclass(frozen=True, repr=False)
class LogNormalMixture(_WithVariation):
    """Brief and extended responses: two lognormals of one coefficient of variation, mixed.

    Parameters
    ----------
    mean, cv : float
        Of all lengths together.
    share : float
        Of the extended ones, in (0, 1).
    ratio : float
        Mean of the extended over mean of the brief ones, at least 1. With 1 this is `LogNormal`.
    """

    share: float
    ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("share", above=0)
        if self.share >= 1:
            raise InputError(f"LogNormalMixture: share = {self.share!r}, but it must be below 1")
        self._number("ratio", at_least=1, at_most=1e6)
        if self._component_square < 0:
            least = math.sqrt((1 + self.cv**2) / (1 + self._component_square) - 1)
            raise InputError(
                f"LogNormalMixture: cv = {self.cv!r}, but a share of {self.share:g} that is {self.ratio:g} times as long "
                f"makes it at least {least:.4g}"
            )

    @property
    def brief_mean(self) -> float:
        """Mean of the brief lengths, tokens."""
        return self.mean / (1 - self.share + self.share * self.ratio)

    @property
    def component_cv(self) -> float:
        """Coefficient of variation of the brief lengths, and of the extended ones."""
        return math.sqrt(self._component_square)

    @property
    def _component_square(self) -> float:
        squares = (1 - self.share + self.share * self.ratio**2) * self.brief_mean**2
        square = (1 + self.cv**2) * self.mean**2 / squares - 1
        return 0.0 if abs(square) < 1e-9 else square

    def _unclipped(self, u: np.ndarray) -> np.ndarray:
        if self.component_cv == 0:
            return np.where(u < 1 - self.share, self.brief_mean, self.brief_mean * self.ratio)
        log_length, level = _table(self)
        guess = np.interp(u, level, log_length)
        below, density = _mixture(self, guess)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = (u - below) / density
        # Far out the density is too small to divide by; there, and at 0, the table is as good.
        return np.exp(guess + np.where(np.abs(step) < 0.1, step, 0.0))


def _mixture(law: LogNormalMixture, log_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of the lengths below, and density of the logarithm, at logarithms of lengths."""
    variance = math.log1p(law.component_cv**2)
    deviation, brief = math.sqrt(variance), math.log(law.brief_mean) - variance / 2
    near, far = ((log_length - centre) / deviation for centre in (brief, brief + math.log(law.ratio)))
    below = (1 - law.share) * special.ndtr(near) + law.share * special.ndtr(far)
    density = (1 - law.share) * np.exp(-(near**2) / 2) + law.share * np.exp(-(far**2) / 2)
    return below, density / (deviation * math.sqrt(2 * math.pi))


@lru_cache(maxsize=32)
def _table(law: LogNormalMixture) -> tuple[np.ndarray, np.ndarray]:
    variance = math.log1p(law.component_cv**2)
    middle, reach = math.log(law.brief_mean) - variance / 2, TABLE_REACH * math.sqrt(variance)
    log_length = np.linspace(middle - reach, middle + math.log(law.ratio) + reach, TABLE_POINTS)
    return log_length, _mixture(law, log_length)[0]
