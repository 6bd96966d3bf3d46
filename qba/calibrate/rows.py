"""The operating points behind the paper's numbers N01 to N17, simulated and held against the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from qba.claims.evidence import PAPER_SEEDS
from qba.claims.numbers import SIMULATED
from qba.claims.rows import L99, REFERENCE_RATE, S99, W
from qba.config import EngineConfig
from qba.engine.simulate import serve
from qba.policies import FCFS, PSF, QBA, Policy
from qba.predictor import mislabel
from qba.requests import Requests
from qba.sweeps import check_seeds, run_pieces
from qba.workload import synthetic

ROWS = tuple(name for name in SIMULATED if name != "N16")
"""The rows that are fitted."""
SCORED = ROWS[:15]
"""N01 to N15: the rows of the root-mean-square log error."""
PAPER = np.array([SIMULATED[name].paper for name in ROWS])
# N01 to N15 are printed to a hundredth of a second, N17 to a whole percentage: errors spread evenly over one such step.
ROUNDING = np.array([0.01] * 15 + [1.0]) / np.sqrt(12) / PAPER

POINTS = (
    ("FCFS", "short_to_long", 0.0),
    ("PSF", "short_to_long", 0.0),
    ("QBA", "short_to_long", 0.0),
    ("PSF", "short_to_long", 0.05),
    ("QBA", "short_to_long", 0.1),
    ("PSF", "long_to_short", 0.4),
    ("QBA", "long_to_short", 0.4),
)
"""Policy, direction and rate of the prediction errors: the operating points behind the rows."""
STATISTICS = (W, S99, L99)
SEEDS_PER_PIECE = 8
IMPOSSIBLE = 3.0
"""Log error of every row where parameters contradict each other: a factor of twenty."""


def simulate_points(
    workload: Mapping[str, Any],
    seeds: int | Sequence[int],
    config: EngineConfig = EngineConfig(),
    *,
    qba: QBA = QBA(),
    executor: Executor | None = None,
) -> dict[str, xr.Dataset]:
    """Simulate the operating points behind N01 to N17.

    Parameters
    ----------
    workload : mapping
        Arguments of `qba.synthetic`; the load is the paper's 32 requests/s.
    seeds : int or sequence of int
        Number of replications, or which.
    config : EngineConfig
        The engine. Requests that it could never serve are shortened until it can.
    qba : QBA
        The reading of quota-based aging.
    executor : concurrent.futures.Executor, optional
        Where the pieces run; default: threads on all cores.

    Returns
    -------
    dict of xarray.Dataset
        As far as the claims' rows look: ``load_sweep`` (policy, rate, seed) and ``prediction_errors`` (direction, policy,
        error_rate, seed), NaN where nothing was simulated.
    """
    seeds = check_seeds(seeds)
    policies = {"FCFS": FCFS(), "PSF": PSF(), "QBA": qba}
    values = np.empty((len(POINTS), len(seeds), len(STATISTICS)))
    places = [slice(start, start + SEEDS_PER_PIECE) for start in range(0, len(seeds), SEEDS_PER_PIECE)]
    tasks = [((workload, seeds[place], config, policies), (slice(None), place)) for place in places]
    run_pieces(_serve_points, tasks, values, executor, progress=False)

    rates = sorted({rate for *_, rate in POINTS})
    shape = (2, len(policies), len(rates), len(seeds), len(STATISTICS))
    coords = {
        "direction": ["short_to_long", "long_to_short"],
        "policy": list(policies),
        "error_rate": rates,
        "seed": seeds,
    }
    grid = xr.DataArray(np.full(shape, np.nan), coords, (*coords, "statistic"))
    for (policy, direction, rate), value in zip(POINTS, values):
        grid.loc[{"policy": policy, "direction": direction, "error_rate": rate}] = value
    errors = xr.Dataset({name: grid.isel(statistic=i) for i, name in enumerate(STATISTICS)})
    perfect = errors.sel(direction="short_to_long", error_rate=0, drop=True).expand_dims(rate=[REFERENCE_RATE])
    return {"load_sweep": perfect, "prediction_errors": errors}


def _serve_points(
    workload: Mapping[str, Any], seeds: Sequence[int], config: EngineConfig, policies: Mapping[str, Policy]
) -> np.ndarray:
    values = np.empty((len(POINTS), len(seeds), len(STATISTICS)))
    for j, seed in enumerate(seeds):
        requests = servable(synthetic(REFERENCE_RATE, seed, **workload), config)
        for i, (policy, direction, rate) in enumerate(POINTS):
            labelled = mislabel(requests, **{direction: rate}, seed=seed) if rate else requests
            wait = serve(labelled, policies[policy], config).start_s - requests.arrival_s
            long = requests.true_long
            values[i, j] = wait.mean(), np.quantile(wait[~long], 0.99), np.quantile(wait[long], 0.99)
    return values


def servable(requests: Requests, config: EngineConfig) -> Requests:
    """The requests, those shortened that the engine could never serve; their labels stay."""
    prompt, response = requests.prompt_tokens, requests.response_tokens
    in_all = min(
        config.kv_safe_tokens if config.kv_projection == "reserve-all" else np.inf,
        config.kv_capacity if config.on_overflow == "preempt" else np.inf,
    )
    prompt = np.minimum(prompt, int(min(config.kv_safe_tokens, in_all - 1)))
    if np.isfinite(in_all):
        response = np.minimum(response, int(in_all) - prompt)
    same = prompt is requests.prompt_tokens
    return requests if same else requests.replace(prompt_tokens=prompt, response_tokens=response)


@dataclass(frozen=True)
class Comparison:
    """Simulated rows beside the paper's, all in the order of `ROWS`.

    ``log_error`` (m,) is log(ours / paper). ``influence`` (n, m): how far each seed moves each row's logarithm, so that
    its covariance over n is that of the rows (the delete-one jackknife's pseudo-values less their mean).
    """

    log_error: np.ndarray
    influence: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of the log errors (m, m): chance in ours, in the paper's 100 seeds, and its rounding."""
        n = len(self.influence)
        return np.cov(self.influence.T) * (1 / n + 1 / PAPER_SEEDS) + np.diag(ROUNDING**2)

    @property
    def standard_error(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))

    @property
    def paired_chi_square(self) -> float:
        """Squared distance from the paper in the metric of `covariance`: about chi-square with as many degrees of freedom
        as rows less parameters, if the workload is the paper's and its rows share their seeds. (Hansen's test.)"""
        return float(self.log_error @ np.linalg.solve(self.covariance, self.log_error))

    @property
    def rms(self) -> float:
        """Root-mean-square log error over N01 to N15."""
        return float(np.sqrt(np.mean(self.log_error[: len(SCORED)] ** 2)))


def compare(results: Mapping[str, xr.Dataset]) -> Comparison:
    """Hold simulated operating points (`simulate_points`, or the published datasets) against the paper."""
    errors, influences = [], []
    for name in ROWS:
        row = SIMULATED[name]
        columns = [np.asarray(column(results), dtype=float) for column in row.columns]
        n = len(columns[0])
        value = row.function(*(column.mean() for column in columns))
        without = row.function(*((column.sum() - column) / (n - 1) for column in columns))
        if value <= 0 or (without <= 0).any():  # N17 where QBA waits longer than FCFS
            value, without = np.exp(-IMPOSSIBLE) * row.paper, np.full(n, np.exp(-IMPOSSIBLE) * row.paper)
        errors.append(np.log(value / row.paper))
        influences.append((n - 1) * (np.log(value) - np.log(without)))
    return Comparison(np.array(errors), np.array(influences).T)
