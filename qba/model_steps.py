"""From a textbook queue to the engine in five steps, to see which one the reduced model does not survive.

Each step is an engine of the same package, loaded to the same share of *its own* capacity; the model is given the
moments and promoted fractions of that very load, so nothing but its assumptions can be at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import xarray as xr

from qba import theory
from qba.config import EngineConfig
from qba.engine.simulate import run_scalars, serve
from qba.intervals import function_interval, mean_interval, stacked
from qba.model_error import POLICIES, TEXT, labelled
from qba.moments import PromotedFraction, ServiceMoments
from qba.policies import PAPER
from qba.requests import Requests
from qba.sweeps import check_seeds
from qba.validate import number
from qba.workload import synthetic

NO_LIMIT = 10**9
"""KV capacity in tokens that nothing here can fill."""
UTILISATIONS = (0.7, 0.9)
AA_AT, QBA_AT = POLICIES.index("AA"), POLICIES.index("QBA")


@dataclass(frozen=True)
class Step:
    """An engine, and what it makes of the lengths."""

    name: str
    config: EngineConfig
    reshape: Callable[[Requests], Requests] = lambda requests: requests


def steps(config: EngineConfig = EngineConfig()) -> tuple[Step, ...]:
    """The five engines; the last one is ``config``.

    Where a request takes a whole budget (one server) or one decode block (B/q servers) of every batch from its start to
    its end, and all batches last equally long, the engine is an M/G/n queue but for arrivals waiting for the next batch.
    """
    block, budget = config.decode_block, config.token_budget
    free = replace(config, kv_capacity=NO_LIMIT)
    even = replace(free, token_time_s=0.0)

    def whole_budgets(requests: Requests) -> Requests:
        return requests.replace(
            prompt_tokens=_rounded_up(requests.prompt_tokens, budget),
            response_tokens=_rounded_up(requests.response_tokens, budget),
        )

    def one_block_prompts(requests: Requests) -> Requests:
        return requests.replace(
            prompt_tokens=np.full(len(requests), block),
            response_tokens=_rounded_up(requests.response_tokens, block),
        )

    return (
        Step("one server", replace(even, decode_block=budget), whole_budgets),
        Step("B/q servers", even, one_block_prompts),
        Step("+ prompts", even),
        Step("+ batch time", free),
        Step("+ KV limit", config),
    )


def model_steps(
    utilisations: Sequence[float] = UTILISATIONS,
    seeds: int = 20,
    horizon_s: float = 400,
    config: EngineConfig = EngineConfig(),
) -> xr.Dataset:
    """Model and simulator at each step.

    Parameters
    ----------
    utilisations : sequence of float
        Shares of each engine's own capacity to load it to, above 0 and at most 0.99.
    seeds : int
        Replications of each point, the same requests under every policy.
    horizon_s : float
        Mean duration of the arrivals in seconds.
    config : EngineConfig
        The engine at the last step.

    Returns
    -------
    xarray.Dataset
        By step: `capacity` and `concurrency`, requests/s and requests in flight under FCFS while all wait from the
        start, and `servers`, the model's n. By step and utilisation: `model_capacity`, n / E[S], and
        `matched_wait_s`, FCFS's mean wait in the model if n were the concurrency, rounded. By step, utilisation,
        policy and estimate (value, low, high at 95 %): `wait_s`, `conserved` and `conserved_tokens`, the waits weighted
        with the classes' mean service time or tokens relative to FCFS's. By step, utilisation, closure and policy:
        `model_wait_s`, from the promoted fractions of the same runs, and `wait_ratio`, simulated over modelled wait;
        `matched_ratio` is the same for `matched_wait_s` (0 where that is infinite).

    Raises
    ------
    InputError
        If an argument is outside its range.
    """
    utilisations = [number("model_steps", "utilisations", u, above=0, at_most=0.99) for u in utilisations]
    seeds = check_seeds(seeds)
    with ThreadPoolExecutor() as pool:
        parts = [_step(step, utilisations, seeds, horizon_s, pool) for step in steps(config)]
    names = xr.DataArray([step.name for step in steps(config)], dims="step", name="step")
    study = xr.concat(parts, names)
    wait = study.wait_s.sel(estimate="value", drop=True)
    study = study.assign(
        wait_ratio=wait / study.model_wait_s,
        matched_ratio=wait.sel(policy="FCFS", drop=True) / study.matched_wait_s,
    )
    return labelled(study, STEPS_TEXT).assign_attrs(horizon_s=horizon_s, replications=len(seeds))


STEPS_TEXT = TEXT | {
    "capacity": ("requests/s", "requests served while many wait"),
    "concurrency": ("1", "requests in flight while many wait"),
    "servers": ("1", "effective parallelism (n)"),
    "model_capacity": ("requests/s", "capacity of the reduced model (n over mean service time)"),
    "model_wait_s": ("s", "mean wait in the reduced model"),
    "wait_ratio": ("1", "simulated over modelled mean wait"),
    "matched_ratio": ("1", "simulated over modelled mean wait under FCFS, with n = concurrency"),
    "matched_wait_s": ("s", "mean wait under FCFS in the reduced model with n = concurrency"),
    "conserved_tokens": ("1", "simulated token-weighted mean wait, relative to FCFS"),
    "step": ("1", "from queue to engine"),
    "utilisation": ("1", "arrival rate over capacity"),
}


class _Served(NamedTuple):
    """One replication: the requests, when FCFS started and finished them, waits by policy and class."""

    requests: Requests
    start_s: np.ndarray
    finish_s: np.ndarray
    waits: np.ndarray  # (policy, class)
    fractions: tuple[float, float]  # φ of AA and of QBA


def _step(
    step: Step, utilisations: Sequence[float], seeds: Sequence[int], horizon_s: float, pool: ThreadPoolExecutor
) -> xr.Dataset:
    capacity, concurrency = _saturated(step)
    points = []
    for utilisation in utilisations:
        rate = utilisation * capacity
        runs = list(pool.map(partial(_serve, step, rate, horizon_s), seeds))
        points.append(_point(step, rate, runs, concurrency))
    axis = xr.DataArray(utilisations, dims="utilisation", name="utilisation")
    found = xr.concat(points, axis)
    return found.assign(
        capacity=capacity, concurrency=concurrency, servers=found.servers.isel(utilisation=0, drop=True)
    )


def _saturated(step: Step, requests: int = 6000) -> tuple[float, float]:
    """Requests/s served and requests in flight under FCFS, over the middle of a run in which all wait from the start."""
    queue = step.reshape(synthetic(1, 0, requests=requests)).replace(arrival_s=np.zeros(requests))
    run = serve(queue, PAPER[0](), step.config)
    begin, end = 0.2 * run.finish_s.max(), 0.8 * run.finish_s.max()
    served = np.count_nonzero((run.finish_s > begin) & (run.finish_s <= end))
    stay = np.clip(np.minimum(run.finish_s, end) - np.maximum(run.start_s, begin), 0, None)
    return served / (end - begin), stay.sum() / (end - begin)


def _serve(step: Step, rate: float, horizon_s: float, seed: int) -> _Served:
    requests = step.reshape(synthetic(rate, seed, horizon_s=horizon_s))
    policies = [cls() for cls in PAPER]
    runs = [serve(requests, policy, step.config) for policy in policies]
    scalars = [run_scalars(requests, policy, step.config, run) for policy, run in zip(policies, runs)]
    members = [~requests.true_long, requests.true_long]
    waits = np.array([[(run.start_s - requests.arrival_s)[those].mean() for those in members] for run in runs])
    fractions = (scalars[AA_AT]["aged_fraction"], scalars[QBA_AT]["promoted_fraction"])
    return _Served(requests, runs[0].start_s, runs[0].finish_s, waits, fractions)


def _point(step: Step, rate: float, runs: Sequence[_Served], concurrency: float) -> xr.Dataset:
    """One step at one rate."""

    def pooled(name: str) -> np.ndarray:
        return np.concatenate([getattr(run.requests, name) for run in runs])

    prompt, response, long = pooled("prompt_tokens"), pooled("response_tokens"), pooled("true_long")
    start, finish = (np.concatenate([getattr(run, name) for run in runs]) for name in ("start_s", "finish_s"))
    moments = ServiceMoments.from_times(start, finish, long)
    config = step.config
    servers = theory.parallelism_formula(
        config.token_budget, config.decode_block, config.kv_safe_tokens, prompt.mean(), response.mean()
    )
    waits = xr.DataArray(np.stack([run.waits for run in runs]), dims=("seed", "policy", "class"))
    waits = waits.assign_coords(policy=list(POLICIES))
    share = np.array([moments.short_share, 1 - moments.short_share])
    tokens = np.array([(prompt + response)[~long].mean(), (prompt + response)[long].mean()])
    service = np.array([moments.short_mean_s, moments.long_mean_s])

    def weighted(weights: np.ndarray) -> xr.DataArray:
        return (waits * xr.DataArray(share * weights, dims="class")).sum("class")

    def over_fcfs(values: xr.DataArray) -> xr.DataArray:
        fcfs = values.sel(policy="FCFS", drop=True)
        return stacked(function_interval(lambda mine, theirs: mine / theirs, values, fcfs))

    fractions = np.mean([run.fractions for run in runs], axis=0)
    return xr.Dataset(
        {
            "wait_s": stacked(mean_interval(weighted(np.ones(2)))),
            "conserved": over_fcfs(weighted(service)),
            "conserved_tokens": over_fcfs(weighted(tokens)),
            "model_wait_s": _model_waits(rate, moments, servers, *fractions),
            "matched_wait_s": theory.fcfs_wait(rate, moments, round(concurrency)),
            "model_capacity": servers / moments.mean_s,
            "servers": servers,
        }
    )


def _model_waits(rate: float, moments: ServiceMoments, servers: int, *fractions: float) -> xr.DataArray:
    aged, promoted = (PromotedFraction([0.5], [fraction]) for fraction in fractions)  # the same at any load
    waits = [theory.mean_waits(rate, moments, servers, aged, promoted, closure=name) for name in theory.CLOSURES]
    return xr.DataArray(
        [[float(by_policy[name]) for name in POLICIES] for by_policy in waits],
        coords={"closure": list(theory.CLOSURES), "policy": list(POLICIES)},
        dims=("closure", "policy"),
    )


def _rounded_up(tokens: np.ndarray, multiple: int) -> np.ndarray:
    return -(-tokens // multiple) * multiple
