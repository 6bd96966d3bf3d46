"""Grids of simulations: every policy at every point, with the same replications, over all cores.

Replication r draws the same requests for every policy, engine and error rate (paired comparisons), and a point's result
depends on nothing but the point: not on the executor, its number of workers or the order in which pieces end.
"""

from __future__ import annotations

import inspect
import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import astuple, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

from qba.config import EngineConfig
from qba.engine.simulate import serve
from qba.errors import InputError
from qba.lengths import LengthDistribution
from qba.metrics import SUMMARY, summary_values
from qba.policies import BUILT_IN, PAPER, Policy
from qba.predictor import predict
from qba.requests import Requests
from qba.store import Store
from qba.validate import instance
from qba.workload import ROOT_SEED, synthetic

PIECES, LEAST_RUNS, MOST_RUNS = 64, 40, 1500
"""Pieces of work that a grid is cut into, and the least and the most simulations in one. The least take some hundredths of a
second, long against the cost of handing them to a thread; the most about a second, long against that of a cluster. The cut
depends on the grid alone, so that a store can be gone on with elsewhere."""

AXIS_TEXT = {
    "rate": ("requests/s", "arrival rate"),
    "seed": ("1", "replication"),
    "policy": ("1", "scheduling policy"),
    "window": ("1", "trace window"),
    "quota": ("1", "short admissions for each promotion (k)"),
    "aging_quantile": ("1", "quantile level of the aging threshold (gamma)"),
    "horizon_s": ("s", "mean duration of the arrivals"),
    "requests": ("1", "number of requests"),
    "prompt": ("1", "distribution of the prompt lengths, tokens"),
    "response": ("1", "distribution of the response lengths, tokens"),
    "short_to_long": ("1", "probability that a true short is predicted long"),
    "long_to_short": ("1", "probability that a true long is predicted short"),
    "length_error": ("1", "standard deviation of log predicted over true response length"),
    "rank_noise": ("1", "standard deviation of a predicted rank as a share of the number of requests"),
}

WORKLOAD_AXES = tuple(name for name in inspect.signature(synthetic).parameters if name != "seed")
LENGTH_AXES = ("prompt", "response")
PREDICTION_AXES = tuple(name for name in inspect.signature(predict).parameters if name not in ("requests", "seed"))
ENGINE_AXES = tuple(f.name for f in fields(EngineConfig))
WORD_AXES = {f.name for cls in (EngineConfig, *BUILT_IN) for f in fields(cls) if isinstance(f.default, (str, bool))}
"""Axes of names or truth values; all others are of numbers."""


@dataclass(frozen=True)
class Case:
    """One point of a grid without its seed. Hashable, so that a point that occurs twice is simulated once."""

    workload: tuple[tuple[str, float | LengthDistribution], ...]
    prediction: tuple[tuple[str, float], ...]
    policy: Policy
    config: EngineConfig


def sweep(
    policies: Sequence[Policy],
    rate: float | Sequence[float] = 32,
    seeds: int | Sequence[int] = 100,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
    store: str | Path | None = None,
    **axes: Sequence[float | str | LengthDistribution],
) -> xr.Dataset:
    """Simulate the synthetic workload on a grid.

    Parameters
    ----------
    policies : sequence of Policy
    rate : sequence of float
        λ in requests/s.
    seeds : int or sequence of int
        Number of replications, or which.
    config : EngineConfig
    executor : concurrent.futures.Executor, optional
        Where the pieces run. Default: threads on all cores (the compiled loop releases Python's lock). It is left open.
    progress : bool
        Show a progress bar.
    store : str or Path, optional
        A folder that keeps each piece once it is finished, written whole or not at all (see `qba.store`). The same call
        after an interrupt goes on there and gives the same to the last bit; any other call is refused.
    **axes : sequence of float, str or LengthDistribution
        More dimensions: parameters of `qba.synthetic`; errors of the prediction (``short_to_long``, ``long_to_short``
        as in `qba.mislabel`; ``length_error``, ``rank_noise`` as in `qba.predict_lengths`); fields of `EngineConfig`;
        or parameters of the policies. A policy without the parameter is the same all along that axis.
        Distributions of lengths are labelled by their text, such as ``"Exponential(mean=317)"``.

    Returns
    -------
    xarray.Dataset
        Dimensions (policy, rate, …axes, seed); one variable for each statistic of `qba.summarize`.

    Raises
    ------
    InputError
        If an axis is unknown or empty, or a value lies outside its range.
    """
    policies = check_policies(policies)
    _check_engine(config, executor)
    seeds = check_seeds(seeds)
    grid = {name: _axis(name, values, policies) for name, values in {"rate": rate, **axes}.items()}

    points = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    cases = [_case(policy, point, config) for policy in policies for point in points]
    unique = list(dict.fromkeys(cases))
    place = {case: i for i, case in enumerate(unique)}
    groups: dict[tuple, list[int]] = {}
    for i, case in enumerate(unique):
        groups.setdefault(case.workload, []).append(i)
    pieces = [
        (group, block)
        for group in groups.values()
        for block in _blocks(range(len(seeds)), max(1, runs_per_piece(len(unique) * len(seeds)) // len(group)))
    ]
    kept = store and Store(store, {"cases": _digest(unique), "seeds": _digest(seeds), "root_seed": str(ROOT_SEED)})

    values = np.empty((len(unique), len(seeds), len(SUMMARY)))
    tasks = [(([unique[i] for i in group], [seeds[j] for j in block]), np.ix_(group, block)) for group, block in pieces]
    run_pieces(serve_cases, tasks, values, executor, progress, kept)
    values = values[[place[case] for case in cases]]
    shape = (len(policies), *(len(v) for v in grid.values()), len(seeds))
    texts = {name: [repr(law) for law in grid[name]] for name in LENGTH_AXES if name in grid}
    coords = {"policy": policy_labels(policies), **grid, **texts, "seed": seeds}
    drawn = {p.name: p.default for p in inspect.signature(synthetic).parameters.values() if p.name != "seed"}
    workload = ", ".join(f"{name}={value}" for name, value in drawn.items() if value is not None and name not in grid)
    attributes = {"workload": f"synthetic({workload})", "root_seed": ROOT_SEED}
    return _grid_dataset(values.reshape(*shape, len(SUMMARY)), coords, policies, config, attributes)


def replay(
    windows: Sequence[Requests],
    policies: Sequence[Policy] = tuple(cls() for cls in PAPER),
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Simulate given requests, such as windows of a trace, under every policy.

    Parameters
    ----------
    windows : sequence of Requests
    policies, config, executor, progress
        As in `sweep`.

    Returns
    -------
    xarray.Dataset
        Dimensions (policy, window); one variable for each statistic of `qba.summarize`.
    """
    policies = check_policies(policies)
    _check_engine(config, executor)
    windows = list(windows)
    if not windows:
        raise InputError("replay: windows is empty, but at least one window of requests is needed")
    values = np.empty((len(policies), len(windows), len(SUMMARY)))
    size = runs_per_piece(len(windows) * len(policies)) // len(policies)
    blocks = _blocks(range(len(windows)), max(1, size))
    everyone = range(len(policies))
    tasks = [((policies, config, [windows[j] for j in block]), np.ix_(everyone, block)) for block in blocks]
    run_pieces(_serve_windows, tasks, values, executor, progress)
    return _grid_dataset(
        values, {"policy": policy_labels(policies), "window": list(range(len(windows)))}, policies, config, {}
    )


def serve_cases(cases: Sequence[Case], seeds: Sequence[int]) -> np.ndarray:
    """One piece of a sweep: shape (cases, seeds, statistics of `SUMMARY`). The cases share their workload."""
    values = np.empty((len(cases), len(seeds), len(SUMMARY)))
    for j, seed in enumerate(seeds):
        requests = synthetic(**dict(cases[0].workload), seed=seed)
        predicted = {(): requests}
        for i, case in enumerate(cases):
            if case.prediction not in predicted:
                predicted[case.prediction] = predict(requests, seed, **dict(case.prediction))
            chosen = predicted[case.prediction]
            values[i, j] = summary_values(chosen, case.policy, case.config, serve(chosen, case.policy, case.config))
    return values


def _serve_windows(policies: Sequence[Policy], config: EngineConfig, windows: Sequence[Requests]) -> np.ndarray:
    """One piece of a replay: shape (policies, windows, statistics)."""
    return np.array(
        [[summary_values(w, policy, config, serve(w, policy, config)) for w in windows] for policy in policies]
    )


def run_pieces(
    function: Callable[..., np.ndarray],
    tasks: Iterable[tuple[tuple, tuple]],
    values: np.ndarray,
    executor: Executor | None,
    progress: bool,
    store: Store | None = None,
) -> None:
    """Run the tasks ((arguments, place) pairs) and write each result to its place in ``values``.

    With a store, what it holds is not run again, and what is finished is kept at once.
    """
    if executor is None:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return run_pieces(function, tasks, values, threads, progress, store)
    futures: dict[Future, tuple[int, tuple]] = {}
    total, done = values.shape[0] * values.shape[1], 0
    with tqdm(total=total, unit="run", disable=not progress, leave=False) as bar:
        try:
            for piece, (arguments, place) in enumerate(tasks):
                known = store.load(piece, values[place].shape) if store else None
                if known is None:
                    futures[executor.submit(function, *arguments)] = piece, place
                else:
                    values[place] = known
                    done += known.shape[0] * known.shape[1]
                    bar.update(known.shape[0] * known.shape[1])
            for future in as_completed(futures):
                piece, place = futures[future]
                result = future.result()
                values[place] = result
                if store:
                    store.save(piece, result)
                done += result.shape[0] * result.shape[1]
                bar.update(result.shape[0] * result.shape[1])
        except KeyboardInterrupt:
            kept = f"kept in {store.folder}; the same call goes on there" if store else "lost (store= keeps them)"
            print(f"\ninterrupted after {done:,} of {total:,} runs: {kept}", file=sys.stderr)
            raise
        finally:
            for future in futures:
                future.cancel()  # after an error or an interrupt, what has not started need not


def runs_per_piece(runs: int) -> int:
    """Simulations in one piece of so many."""
    return min(MOST_RUNS, max(LEAST_RUNS, runs // PIECES))


def _case(policy: Policy, point: Mapping[str, float], config: EngineConfig) -> Case:
    own = {f.name for f in fields(policy)}
    engine = {name: value for name, value in point.items() if name in ENGINE_AXES}
    return Case(
        workload=tuple((name, value) for name, value in point.items() if name in WORKLOAD_AXES),
        prediction=tuple((name, value) for name, value in point.items() if name in PREDICTION_AXES),
        policy=replace(policy, **{name: value for name, value in point.items() if name in own}),
        config=replace(config, **engine),
    )


def _axis(name: str, values: Any, policies: Sequence[Policy]) -> list[float]:
    own = {f.name for policy in policies for f in fields(policy)}
    known = {*WORKLOAD_AXES, *PREDICTION_AXES, *ENGINE_AXES, *own}
    if name not in known:
        raise InputError(f"sweep: unknown axis {name!r}: there are {', '.join(sorted(known))}")
    if name in LENGTH_AXES:
        return _length_axis(name, values)
    values = _array(values)
    truth = any(f.name == name and f.type in (bool, "bool") for policy in policies for f in fields(policy))
    kinds, what = ("Ub", "name") if name in WORD_AXES or truth else ("iuf", "number")
    if values.ndim != 1 or values.dtype.kind not in kinds or not len(values):
        raise InputError(f"sweep: axis {name} must be a {what} or a list of {what}s, not empty")
    if len(np.unique(values)) != len(values):
        raise InputError(f"sweep: axis {name} names a value twice")
    return values.tolist()


def _length_axis(name: str, values: Any) -> list[LengthDistribution]:
    laws = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    if not laws or not all(isinstance(law, LengthDistribution) for law in laws):
        raise InputError(f"sweep: axis {name} must be a distribution of lengths or a list of them, not empty")
    if len({repr(law) for law in laws}) != len(laws):
        raise InputError(f"sweep: axis {name} names a value twice")
    return laws


def _check_engine(config: EngineConfig, executor: Executor | None) -> None:
    instance("sweep", "config", config, EngineConfig)
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise InputError(f"sweep: executor is {executor!r:.80}, but it must be a concurrent.futures.Executor")


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Which replications: a number n means 0 … n − 1."""
    given = _array(range(seeds) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds, at_least_1d=False)
    if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size or len(np.unique(given)) != given.size:
        raise InputError(
            f"sweep: seeds = {seeds!r}, but it must be a number of at least 1 or a list of different seeds"
        )
    return given.tolist()


def check_policies(policies: Sequence[Policy]) -> list[Policy]:
    given = policies
    if isinstance(policies, Policy):
        policies = [policies]
    policies = list(policies) if isinstance(policies, Iterable) and not isinstance(policies, str) else []
    if not policies or not all(isinstance(p, Policy) for p in policies):
        raise InputError(f"policies = {given!r}, but it must be a list of policies such as [qba.PSF(), qba.QBA()]")
    if len(set(policies)) != len(policies):
        raise InputError("policies: the same policy with the same parameters is named twice")
    return policies


def _array(values: Any, at_least_1d: bool = True) -> np.ndarray:
    """As numpy sees it; empty, and so refused by the caller, where it is no array at all."""
    try:
        return np.atleast_1d(values) if at_least_1d else np.asarray(values)
    except ValueError:
        return np.empty(0)


def _digest(things: Iterable[Any]) -> str:
    """The number of things and a hash of all their texts: what a store is recognised by."""
    # A representation may round; the fields do not. A policy of the user's is also what its methods do.
    texts = [
        f"{thing!r} {astuple(thing) if is_dataclass(thing) else ''} {getattr(getattr(thing, 'policy', None), 'code', '')}"
        for thing in things
    ]
    return f"{len(texts)}, SHA-256 {hashlib.sha256(chr(10).join(texts).encode()).hexdigest()[:16]}"


def policy_labels(policies: Sequence[Policy]) -> list[str]:
    """Names, or where two policies share one, the name with its parameters."""
    names = [policy.name for policy in policies]
    return [p.name if names.count(p.name) == 1 else repr(p) for p in policies]


def _blocks(items: Sequence[int], size: int) -> list[list[int]]:
    return [list(items[i : i + size]) for i in range(0, len(items), size)]


def _grid_dataset(
    values: np.ndarray,
    coords: Mapping[str, list],
    policies: Sequence[Policy],
    config: EngineConfig,
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """Label the values, shape (…coords, statistics); the attributes say what was held fixed."""
    described = {
        name: (name, axis, dict(zip(("units", "long_name"), AXIS_TEXT.get(name, ("1", name.replace("_", " "))))))
        for name, axis in coords.items()
    }
    variables = {
        name: (tuple(coords), values[..., i], {"units": units, "long_name": text})
        for i, (name, (units, text)) in enumerate(SUMMARY.items())
    }
    fixed = {"policies": ", ".join(map(repr, policies)), "engine": repr(config)}
    return xr.Dataset(variables, coords=described, attrs=fixed | attributes)
