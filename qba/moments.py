"""What the reduced M/G/n model takes from simulations: service times per class and promoted fractions.

Numbers in, numbers out, like `qba.theory`, which computes with them (paper, sections II-B, III and IV-A5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from qba.errors import InputError
from qba.validate import number


@dataclass(frozen=True)
class ServiceMoments:
    """First two moments of the service time of the short and the long class (paper, section III-A2).

    Parameters
    ----------
    short_share : float
        p in [0, 1], the probability that a request is short.
    short_mean_s, long_mean_s : float
        E[S | class], s. Disregarded, like the second moment, where the class has no share.
    short_square_s2, long_square_s2 : float
        E[S² | class], s².

    Raises
    ------
    InputError
        If a value is outside its range, or a second moment is below the square of the first.
    """

    short_share: float
    short_mean_s: float
    short_square_s2: float
    long_mean_s: float
    long_square_s2: float

    def __post_init__(self) -> None:
        owner = type(self).__name__
        number(owner, "short_share", self.short_share, at_least=0, at_most=1)
        for name, share in (("short", self.short_share), ("long", 1 - self.short_share)):
            mean, square = getattr(self, f"{name}_mean_s"), getattr(self, f"{name}_square_s2")
            if share > 0:
                number(owner, f"{name}_mean_s", mean, above=0)
                # A constant service time meets the bound exactly, give or take its rounding.
                number(owner, f"{name}_square_s2", square, at_least=mean**2 * (1 - 1e-9))

    @classmethod
    def from_times(cls, start_s: ArrayLike, finish_s: ArrayLike, true_long: ArrayLike) -> ServiceMoments:
        """Estimate the moments from served requests, S = finish - start; the paper calibrates with FCFS at λ = 30.

        Parameters
        ----------
        start_s, finish_s : arrays of shape (n,)
            When each request's first chunk began and its last token was there, s.
        true_long : bool array of shape (n,)
            The requests' true classes; prediction errors come in later, by `predicted`.
        """
        start, finish = np.asarray(start_s, dtype=float), np.asarray(finish_s, dtype=float)
        long = np.asarray(true_long, dtype=bool)
        if start.ndim != 1 or not start.size or not start.shape == finish.shape == long.shape:
            raise InputError(
                f"ServiceMoments: start_s, finish_s and true_long have shapes {start.shape}, {finish.shape} and "
                f"{long.shape}, but they must be three columns of one length, with at least one request"
            )
        service = finish - start
        bad = ~(np.isfinite(service) & (service > 0))
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError(
                f"ServiceMoments: finish_s[{i}] = {finish[i]} and start_s[{i}] = {start[i]}, but both must be finite "
                "and service must take time"
            )
        moments = [
            float(np.mean(service[members] ** power)) if members.any() else 0.0
            for members in (~long, long)
            for power in (1, 2)
        ]
        return cls(float(np.mean(~long)), *moments)

    def predicted(self, short_to_long: float = 0.0, long_to_short: float = 0.0) -> ServiceMoments:
        """Moments of the *predicted* classes under prediction errors, by Bayes' rule (paper, sections II-C and III-A2).

        Parameters
        ----------
        short_to_long, long_to_short : float
            ε_SL and ε_LS, the probabilities in [0, 1] that a short is predicted long and a long predicted short.

        Returns
        -------
        ServiceMoments
            Both classes now are mixtures of the true ones. The moments over all requests are the same as before.
        """
        for name, value in {"short_to_long": short_to_long, "long_to_short": long_to_short}.items():
            number("prediction errors", name, value, at_least=0, at_most=1)
        p = self.short_share
        stay_short, become_short = p * (1 - short_to_long), (1 - p) * long_to_short
        become_long, stay_long = p * short_to_long, (1 - p) * (1 - long_to_short)

        def mixture(from_short: float, from_long: float) -> tuple[float, float]:
            share = from_short + from_long
            if share == 0:
                return 0.0, 0.0
            w = from_short / share  # the share of true shorts among those so predicted
            return (
                w * self.short_mean_s + (1 - w) * self.long_mean_s,
                w * self.short_square_s2 + (1 - w) * self.long_square_s2,
            )

        return ServiceMoments(
            stay_short + become_short, *mixture(stay_short, become_short), *mixture(become_long, stay_long)
        )

    @property
    def mean_s(self) -> float:
        """E[S] over all requests, s."""
        return self.short_share * self.short_mean_s + (1 - self.short_share) * self.long_mean_s

    @property
    def square_s2(self) -> float:
        """E[S²] over all requests, s²."""
        return self.short_share * self.short_square_s2 + (1 - self.short_share) * self.long_square_s2

    @property
    def scv(self) -> float:
        """c_s², the squared coefficient of variation of the service time over all requests."""
        return self.square_s2 / self.mean_s**2 - 1


@dataclass(frozen=True, eq=False)  # comparing arrays gives no single truth value
class PromotedFraction:
    """Fraction φ of the predicted-long requests that aging moves ahead, as a function of the load.

    It is measured in simulations at a few loads, interpolated linearly between them and held constant outside them
    (paper, section III-B1).

    Parameters
    ----------
    load : array of shape (m,)
        ρ of the measured points, increasing.
    fraction : array of shape (m,)
        φ there, in [0, 1].
    """

    load: ArrayLike
    fraction: ArrayLike

    def __post_init__(self) -> None:
        load, fraction = np.array(self.load, dtype=float), np.array(self.fraction, dtype=float)
        if load.ndim != 1 or not load.size or load.shape != fraction.shape:
            raise InputError(
                f"PromotedFraction: load and fraction have shapes {load.shape} and {fraction.shape}, but they must be "
                "two columns of one length, with at least one point"
            )
        if not (np.isfinite(load).all() and (np.diff(load) > 0).all()):
            raise InputError(f"PromotedFraction: load = {load.tolist()}, but it must be finite and increase")
        bad = ~((fraction >= 0) & (fraction <= 1))
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError(f"PromotedFraction: fraction[{i}] = {fraction[i]}, but it must lie in [0, 1]")
        for name, column in (("load", load), ("fraction", fraction)):
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def at(self, load: ArrayLike) -> np.ndarray:
        """φ at any load, clamped outside the measured range; shape as ``load``."""
        return np.interp(load, self.load, self.fraction)

    def extrapolated(self, load: ArrayLike) -> np.ndarray:
        """Whether a load lies outside the measured range, so that `at` can only clamp; bool, shape as ``load``."""
        load = np.asarray(load, dtype=float)
        return (load < self.load[0]) | (load > self.load[-1])
