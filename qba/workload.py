"""The synthetic workload: Poisson arrivals, independent prompt and response lengths (paper, section IV-A1).

The paper's length distributions are not in the text at hand. The defaults are inferred: with the engine as it stands they
reproduce the published waiting times (see the scorecard), but other workloads may do so too.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np

from qba.errors import InputError
from qba.lengths import Exponential, LengthDistribution, LogNormal
from qba.requests import Requests
from qba.validate import number, whole_number

ROOT_SEED = 2026
"""Entropy of the root SeedSequence; replication r is its r-th child."""

MOST_REQUESTS = 10**8
"""Beyond this a workload does not fit into the memory of most machines."""

PROMPT = Exponential(317)
RESPONSE = LogNormal(462, cv=1.0)
"""The default workload's lengths, tokens: inferred, see above."""

STREAMS = ("arrivals", "prompts", "responses", "flips", "length errors", "rank noise")
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
    requests: int | None = None,
    prompt: LengthDistribution = PROMPT,
    response: LengthDistribution = RESPONSE,
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
    requests : int, optional
        The number of requests, whatever the rate; ``horizon_s`` then does not count.
    prompt, response : LengthDistribution
        How prompt and response lengths are distributed (see `qba.lengths`). The same seed gives the same uniform
        numbers to any two distributions.

    Returns
    -------
    Requests
        Long above the sample's own 0.85-quantile of the response length; the prediction is perfect.

    Raises
    ------
    InputError
        If a parameter is outside its range, or no request would be drawn.
    """
    for name, value in {"rate": rate, "horizon_s": horizon_s}.items():
        number("synthetic", name, value, above=0)
    for name, law in {"prompt": prompt, "response": response}.items():
        if not isinstance(law, LengthDistribution):
            raise InputError(
                f"synthetic: {name} is {law!r:.80}, but it must be a distribution of lengths such as {PROMPT!r}"
            )
    n = round(horizon_s * rate) if requests is None else whole_number("synthetic", "requests", requests, at_least=1)
    if not 1 <= n <= MOST_REQUESTS:
        made = f"rate = {rate!r} over horizon_s = {horizon_s!r}" if requests is None else f"requests = {requests!r}"
        raise InputError(f"synthetic: {made} makes {n:,} requests; 1 to {MOST_REQUESTS:,} can be")

    return Requests(
        arrival_s=stream(seed, "arrivals").standard_exponential(n).cumsum() / rate,
        prompt_tokens=prompt.tokens(stream(seed, "prompts").random(n)),
        response_tokens=response.tokens(stream(seed, "responses").random(n)),
    )
