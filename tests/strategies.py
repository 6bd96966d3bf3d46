"""What the engine's tests draw from: engines, loads, labels and policies, small enough for a plain-Python twin.

Values are chosen where the rules meet: budgets of one token, blocks larger than the budget, KV limits that a few
prompts fill, arrivals that fall exactly on a batch boundary, thresholds that equal a wait.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import qba
from qba.policies import BUILT_IN

POLICIES = [kind() for kind in BUILT_IN]
"""Every built-in policy with its defaults: a new policy joins the tests by joining this tuple."""

SMALL = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
"""The same examples in every run, and no clock: the first call compiles, and machines differ."""

AMPLE_KV = 10**6

POLICY_OPTIONS = {
    "quota": st.integers(1, 6),
    # With 0.5 and 0.25 the product with n - 1 is often whole, with 1.0 always.
    "aging_quantile": st.sampled_from([0.25, 0.5, 0.8, 1.0]) | st.floats(0.01, 1.0),
    "aging_classes": st.sampled_from(["all", "predicted-long"]),
    "promotion_clears": st.sampled_from(["prefill-end", "start"]),
}

KV_PROJECTIONS = ["reserve-prompt", "prompt", "chunk", "reserve-all"]

ENGINE_OPTIONS = [
    {},
    *({"kv_projection": value} for value in KV_PROJECTIONS[1:]),
    {"decode_partial": False, "decode_block": 24},  # blocks large enough that some do not fit
]
"""The default engine, and those that differ from it in one option."""


def policy_of(kind):
    """A policy of one kind, its options drawn from `POLICY_OPTIONS`."""
    names = {f.name for f in dataclasses.fields(kind)}
    return st.builds(kind, **{name: drawn for name, drawn in POLICY_OPTIONS.items() if name in names})


def policies():
    return st.one_of([policy_of(kind) for kind in BUILT_IN])


@st.composite
def engines(draw, ample_kv=None):
    """An `EngineConfig`; `ample_kv` True or False fixes whether the KV cache can ever be short."""
    budget = draw(st.integers(1, 3) | st.integers(1, 16))
    block = draw(st.integers(1, budget) | st.integers(1, 2 * budget + 1))
    partial = block > budget or draw(st.booleans())  # whole blocks have to fit
    projection = draw(st.sampled_from(KV_PROJECTIONS))
    if ample_kv is None:
        ample_kv = draw(st.booleans())
    capacity = AMPLE_KV if ample_kv else draw(st.integers(20, 30))
    # At least one token is safe, or two where prompt and response are reserved together.
    least = 0.1 if projection == "reserve-all" else 0.05
    safety = draw(st.sampled_from([1.0, 0.7, 0.5]) | st.floats(least, 1.0))
    # Powers of two keep the clock exact, so that arrivals can fall on a boundary; the paper's values do not.
    overhead, token_time = draw(st.sampled_from([(1.0, 0.0), (1.0, 0.5), (0.25, 0.125), (0.003, 2e-5), (0.1, 0.7)]))
    knee = draw(st.integers(0, 2 * budget) | st.just(budget - 0.5))
    return qba.EngineConfig(
        token_budget=budget,
        decode_block=block,
        kv_capacity=capacity,
        kv_safety=safety,
        batch_overhead_s=overhead,
        token_time_s=token_time,
        knee_tokens=knee,
        kv_projection=projection,
        decode_partial=partial,
    )


@st.composite
def loads(draw, config, max_size=24):
    """`Requests` for `config`, each short enough to be admitted; both labels drawn by themselves."""
    n = draw(st.integers(1, max_size))
    c0 = config.batch_overhead_s
    dense = st.sampled_from([0.0, 0.0, c0, 0.5 * c0]) | st.floats(0.0, 4 * c0)
    sparse = dense | st.just(50 * c0)
    gaps = draw(st.lists(draw(st.sampled_from([st.just(0.0), dense, dense, sparse])), min_size=n, max_size=n))
    arrivals = draw(st.sampled_from([0.0, c0, -1.5])) + np.cumsum(gaps)
    safe = math.floor(config.kv_safe_tokens)
    reserve_all = config.kv_projection == "reserve-all"
    longest = min(safe - reserve_all, draw(st.sampled_from([3 * config.token_budget + 1, 40])))
    prompt = st.just(1) | st.integers(1, longest)
    response = st.just(1) | st.integers(1, draw(st.sampled_from([3 * config.decode_block + 1, 30])))
    prompts = draw(st.lists(prompt, min_size=n, max_size=n))
    responses = draw(st.lists(response, min_size=n, max_size=n))
    if reserve_all:
        responses = np.minimum(responses, safe - np.array(prompts))
    return qba.Requests(
        arrival_s=arrivals,
        prompt_tokens=prompts,
        response_tokens=responses,
        true_long=draw(labels(n)),
        predicted_long=draw(labels(n)),
    )


def labels(n):
    mixed = st.lists(st.booleans(), min_size=n, max_size=n)
    return mixed | mixed | st.sampled_from([[False] * n, [True] * n])


@st.composite
def cases(draw, ample_kv=None, max_size=24):
    """(requests, config): a load that its engine can serve."""
    config = draw(engines(ample_kv=ample_kv))
    return draw(loads(config, max_size=max_size)), config


def flipped(rate, seed, horizon_s=10):
    """A synthetic load of a few hundred requests with wrong labels among the right ones."""
    requests = qba.synthetic(rate=rate, seed=seed, horizon_s=horizon_s)
    return qba.mislabel(requests, short_to_long=0.1, long_to_short=0.2, seed=seed)


def table(rows):
    """`Requests` from rows (arrival, prompt, response, "S" or "L"), true and predicted label alike."""
    arrival, prompt, response, label = zip(*rows, strict=True)
    long = [name == "L" for name in label]
    return qba.Requests(
        arrival_s=arrival, prompt_tokens=prompt, response_tokens=response, true_long=long, predicted_long=long
    )
