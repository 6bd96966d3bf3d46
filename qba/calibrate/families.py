"""Families of workloads: what a search for the lost one may change. To add one, name it in `FAMILIES`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from qba.errors import InputError
from qba.lengths import Gamma, LengthDistribution, LogNormal, LogNormalMixture, Uniform
from qba.workload import PROMPT, RESPONSE

STEPS = {"mean": 0.01, "cv": 0.03, "share": 0.05, "ratio": 0.05, "at_most": 0.05, "horizon_s": 0.05}
"""Relative steps of the finite differences. Waits move some fifteen times as much as a mean length."""
RANGES = {"mean": (50, 3000), "cv": (0.1, 3), "share": (0.02, 0.6), "ratio": (1.1, 12), "at_most": (900, 9000),
          "horizon_s": (20, 600)}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Workloads of one shape.

    Parameters
    ----------
    prompt, response : LengthDistribution
        The shape, and where a search begins.
    free : tuple of str
        What a search may change: ``"horizon_s"``, or a parameter of a distribution such as ``"response.cv"``.
    horizon_s : float
        Mean duration of the arrivals in seconds.
    """

    prompt: LengthDistribution = PROMPT
    response: LengthDistribution = RESPONSE
    free: tuple[str, ...] = ("prompt.mean", "response.mean", "response.cv")
    horizon_s: float = 100.0

    def __post_init__(self) -> None:
        own = {f"{part}.{f.name}" for part in ("prompt", "response") for f in fields(getattr(self, part))}
        for name in self.free:
            if name not in own | {"horizon_s"} or self.value(name) is None:
                raise InputError(
                    f"Family: no parameter {name!r} to be free; there are {', '.join(sorted(own))}, horizon_s"
                )

    def value(self, name: str) -> float:
        """A parameter's value."""
        part, _, own = name.rpartition(".")
        return getattr(getattr(self, part) if part else self, own)

    def at(self, **values: float) -> Family:
        """The family with other values, such as ``{"response.cv": 1.1}``."""
        changed = self
        for name, value in values.items():
            part, _, own = name.rpartition(".")
            new = {part: replace(getattr(changed, part), **{own: float(value)})} if part else {own: float(value)}
            changed = replace(changed, **new)
        return changed

    def workload(self) -> dict[str, Any]:
        """Arguments of `qba.synthetic`."""
        return {"prompt": self.prompt, "response": self.response, "horizon_s": self.horizon_s}

    def steps(self) -> np.ndarray:
        return np.array([STEPS[name.rpartition(".")[2]] for name in self.free])

    def ranges(self) -> np.ndarray:
        """Logarithms of the least and the largest value of each free parameter, shape (2, k)."""
        low_high = np.array([RANGES[name.rpartition(".")[2]] for name in self.free], dtype=float)
        for i, name in enumerate(self.free):
            if name.endswith(".cv") and isinstance(getattr(self, name.partition(".")[0]), Uniform):
                low_high[i, 1] = 1 / np.sqrt(3)
        return np.log(low_high.T)


_MEANS, _BOTH_CV = ("prompt.mean", "response.mean"), ("prompt.cv", "response.cv")
_LONGER = LogNormal(448, cv=1.0)
FAMILIES: dict[str, Family] = {
    "exponential, lognormal": Family(),
    "exponential, lognormal; horizon": Family(response=_LONGER, free=(*_MEANS, "response.cv", "horizon_s"), horizon_s=175),
    "exponential, clipped lognormal; horizon": Family(
        response=replace(_LONGER, at_most=6000), free=(*_MEANS, "response.cv", "response.at_most", "horizon_s"), horizon_s=175
    ),
    "exponential, mixture; horizon": Family(
        response=LogNormalMixture(448, cv=1.0, share=0.2, ratio=1.5),
        free=(*_MEANS, "response.cv", "response.share", "response.ratio", "horizon_s"), horizon_s=175,
    ),
    "exponential, gamma; horizon": Family(
        response=Gamma(440, cv=1.2), free=(*_MEANS, "response.cv", "horizon_s"), horizon_s=100
    ),
    "gamma, lognormal": Family(Gamma(325, cv=0.8), free=(*_MEANS, *_BOTH_CV)),
    "gamma, lognormal; horizon": Family(
        Gamma(330, cv=0.8), LogNormal(442, cv=1.0), free=(*_MEANS, *_BOTH_CV, "horizon_s"), horizon_s=200
    ),
    "lognormal, lognormal; horizon": Family(
        LogNormal(333, cv=0.8), LogNormal(442, cv=1.0), free=(*_MEANS, *_BOTH_CV, "horizon_s"), horizon_s=200
    ),
    "uniform, lognormal; horizon": Family(
        Uniform(334, cv=0.55), LogNormal(442, cv=1.0), free=(*_MEANS, *_BOTH_CV, "horizon_s"), horizon_s=200
    ),
}  # fmt: skip
"""Prompt and response family, by name, each where its search begins; the horizon is 100 s where it is not free."""
