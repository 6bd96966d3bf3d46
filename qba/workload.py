"""The synthetic workload: Poisson arrivals, independent prompt and response lengths (paper, section IV-A1).

The paper's length distributions are not in the text at hand. The defaults are inferred: with the engine as it stands they
reproduce the published waiting times (see the scorecard), but other workloads may do so too.
"""

from __future__ import annotations

import math
from numbers import Integral

import numpy as np

from qba.errors import InputError
from qba.requests import Requests
from qba.validate import number

ROOT_SEED = 2026
"""Entropy of the root SeedSequence; replication r is its r-th child."""

MOST_REQUESTS = 10**8
"""Beyond this a workload does not fit into the memory of most machines."""

STREAMS = ("arrivals", "prompts", "responses", "flips")
"""Named random streams of one replication. Only ever append: a stream's place is its spawn key."""


def stream(seed: int, name: str) -> np.random.Generator:
    """Random generator of one named stream of one replication.

    Each replication has its own child of the root `SeedSequence`, and each stream its own grandchild, so that changing
    how one column is drawn leaves the others as they were (paired comparisons under common random numbers).

    Parameters
    ----------
    seed : int
        Number of the replication, 0 or more.
    name : str
        One of `STREAMS`.
    """
    if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed = {seed!r}, but it must be a whole number of at least 0")
    key = (int(seed), STREAMS.index(name))
    return np.random.default_rng(np.random.SeedSequence(ROOT_SEED, spawn_key=key))


def synthetic(
    rate: float = 32,
    seed: int = 0,
    *,
    horizon_s: float = 100,
    prompt_mean: float = 317,
    response_mean: float = 462,
    response_cv: float = 1.0,
) -> Requests:
    """Draw the default workload: ``round(horizon_s * rate)`` requests with Poisson arrivals.

    Parameters
    ----------
    rate : float
        λ in requests/s. The same seed at another rate gives the same lengths and the same arrivals on another scale.
    seed : int
        Number of the replication (see `stream`).
    horizon_s : float
        Mean duration of the arrivals in seconds.
    prompt_mean : float
        Mean of the exponential prompt lengths, tokens (before rounding to whole tokens, at least 1).
    response_mean, response_cv : float
        Mean (tokens) and coefficient of variation of the lognormal response lengths.

    Returns
    -------
    Requests
        Long above the sample's own 0.85-quantile of the response length; the prediction is perfect.

    Raises
    ------
    InputError
        If a parameter is outside its range, or no request would be drawn.
    """
    values = {"rate": rate, "horizon_s": horizon_s, "prompt_mean": prompt_mean, "response_mean": response_mean}
    for name, value in values.items():
        number("synthetic", name, value, above=0)
    number("synthetic", "response_cv", response_cv, at_least=0, at_most=100)
    n = round(horizon_s * rate)
    if not 1 <= n <= MOST_REQUESTS:
        raise InputError(
            f"synthetic: rate = {rate!r} over horizon_s = {horizon_s!r} makes {n:,} requests; 1 to {MOST_REQUESTS:,} can be"
        )

    log_variance = math.log1p(response_cv**2)
    arrivals = stream(seed, "arrivals").standard_exponential(n).cumsum() / rate
    prompts = stream(seed, "prompts").exponential(prompt_mean, n)
    responses = stream(seed, "responses").lognormal(
        math.log(response_mean) - log_variance / 2, math.sqrt(log_variance), n
    )
    return Requests(arrival_s=arrivals, prompt_tokens=_whole(prompts), response_tokens=_whole(responses))


def _whole(tokens: np.ndarray) -> np.ndarray:
    return np.maximum(1, np.rint(tokens)).astype(np.int64)
