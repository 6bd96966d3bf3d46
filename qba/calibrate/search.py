"""Moving a family's free parameters to where its rows come nearest the paper's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import approx_fprime, least_squares

from qba.calibrate.families import Family
from qba.calibrate.rows import IMPOSSIBLE, ROWS, Comparison, compare, simulate_points
from qba.config import EngineConfig
from qba.errors import InputError
from qba.policies import QBA

FIT_SEEDS = range(1000, 1200)
REFINING_SEEDS = range(2000, 2400)
FRESH_SEEDS = range(5000, 5300)
"""Replications of the search, of its refinement and of the verdict: none is one of the published study's 0 … 99."""

REFINING_EVALUATIONS = 6
STEP_TOLERANCE = 2e-5
"""Of the norm of the logarithms of the parameters, some 12: a search ends where its steps are a few parts in ten thousand."""


@dataclass(frozen=True)
class Fit:
    """A family at its best, with what says how sure that is.

    ``jacobian`` (m, k): derivatives of the rows' log errors by the logarithms of the free parameters; ``weights`` (m,):
    1 / standard error, 0 for a row that the fit was not shown; ``cost``: sum of squared weighted log errors over the
    refining seeds; ``evaluations``: simulations of all operating points.
    """

    family: Family
    jacobian: np.ndarray
    weights: np.ndarray
    refined: Comparison
    cost: float
    evaluations: int = 0

    @property
    def parameters(self) -> dict[str, float]:
        return {name: self.family.value(name) for name in self.family.free}


@dataclass
class Search:
    """The weighted log errors of a family as a function of the logarithms of its free parameters."""

    family: Family
    seeds: Sequence[int]
    weights: np.ndarray
    options: Mapping[str, Any]
    comparisons: dict[bytes, Comparison | None] = field(default_factory=dict)

    def named(self, logs: np.ndarray) -> dict[str, float]:
        return dict(zip(self.family.free, np.exp(logs)))

    def comparison(self, logs: np.ndarray) -> Comparison | None:
        """None where the parameters contradict each other."""
        key = np.asarray(logs).tobytes()
        if key not in self.comparisons:
            try:
                family = self.family.at(**self.named(logs))
            except InputError:
                self.comparisons[key] = None
            else:
                self.comparisons[key] = compare(simulate_points(family.workload(), self.seeds, **self.options))
        return self.comparisons[key]

    def log_error(self, logs: np.ndarray) -> np.ndarray:
        found = self.comparison(logs)
        return np.full(len(ROWS), IMPOSSIBLE) if found is None else found.log_error

    def residuals(self, logs: np.ndarray) -> np.ndarray:
        return self.weights * self.log_error(logs)


def fit(
    family: Family,
    seeds: Sequence[int] = FIT_SEEDS,
    refining: Sequence[int] = REFINING_SEEDS,
    *,
    leave_out: Sequence[str] = (),
    config: EngineConfig = EngineConfig(),
    qba: QBA = QBA(),
    executor: Executor | None = None,
) -> Fit:
    """Move a family's free parameters to where its rows come nearest the paper's.

    The search runs over ``seeds``; with the derivatives that it ends with, a few steps over the ``refining`` seeds, more
    of them, take most of its chance error away. Some fifty evaluations in all.

    Parameters
    ----------
    family : Family
    seeds, refining : sequence of int
        Replications of the search and of its refinement.
    leave_out : sequence of str
        Ids of rows that the fit is not shown.
    config, qba, executor
        See `simulate_points`: the fit under another reading of the engine or of the policy.

    Raises
    ------
    InputError
        If a row to leave out is unknown.
    """
    unknown = sorted(set(leave_out) - set(ROWS))
    if unknown:
        raise InputError(f"fit: no row {unknown[0]!r} to leave out; there are {', '.join(ROWS)}")
    if executor is None:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return fit(family, seeds, refining, leave_out=leave_out, config=config, qba=qba, executor=threads)
    options = {"config": config, "qba": qba, "executor": executor}
    shown = ~np.isin(ROWS, leave_out)
    search = Search(family, seeds, np.ones(len(ROWS)), options)
    logs = np.clip(np.log([family.value(name) for name in family.free]), *_inside(family.ranges()))
    search.weights = shown / _standard_error(search, logs)
    logs = least_squares(
        search.residuals, logs, lambda z: approx_fprime(z, search.residuals, family.steps()), family.ranges(),
        x_scale=10 * family.steps(), xtol=STEP_TOLERANCE, ftol=1e-3, max_nfev=15,
    ).x  # fmt: skip
    jacobian = approx_fprime(logs, search.log_error, family.steps())
    weights, evaluations = search.weights, len(search.comparisons)

    search = Search(family, refining, weights, options)
    slopes = weights[:, None] * jacobian
    if slopes.size:
        logs = least_squares(
            search.residuals, logs, lambda z: slopes, family.ranges(), x_scale=10 * family.steps(), xtol=STEP_TOLERANCE,
            max_nfev=REFINING_EVALUATIONS,
        ).x  # fmt: skip
    best = search.comparison(logs)
    return Fit(
        family.at(**search.named(logs)), jacobian, weights, best, float(np.sum(search.residuals(logs) ** 2)),
        evaluations + len(search.comparisons),
    )  # fmt: skip


def _inside(ranges: np.ndarray) -> np.ndarray:
    """The ranges a little narrower: a search may not begin at their ends."""
    return ranges + 1e-3 * np.array([[1], [-1]])


def _standard_error(search: Search, logs: np.ndarray) -> np.ndarray:
    found = search.comparison(logs)
    if found is None:
        raise InputError(f"fit: the search cannot begin at {search.named(logs)}: these contradict each other")
    return found.standard_error
