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
    "aging_sample": st.sampled_from(["history", "queue"]),
    "aging_window": st.none() | st.integers(1, 4) | st.just(1000),
    "promotion_clears": st.sampled_from(["prefill-end", "start"]),
}

KV_PROJECTIONS = ["reserve-prompt", "prompt", "chunk", "reserve-all"]

ENGINE_OPTIONS = [
    {},
    *({"kv_projection": value} for value in KV_PROJECTIONS[1:]),
    {"decode_partial": False, "decode_block": 24},  # blocks large enough that some do not fit
    {"on_blocked": "skip"},
    {"on_overflow": "preempt"},
    {"on_blocked": "skip", "on_overflow": "preempt", "kv_safety": 1.0, "kv_projection": "chunk"},
]
"""The default engine, those that differ from it in one option, and one that differs in many."""


@st.composite
def policy_of(draw, kind):
    """A policy of one kind, its options drawn from `POLICY_OPTIONS`."""
    options = {f.name: draw(POLICY_OPTIONS[f.name]) for f in dataclasses.fields(kind)}
    if options.get("aging_sample") == "queue":
        del options["aging_window"]  # which is of starts
    return kind(**options)


def policies():
    return st.one_of([policy_of(kind) for kind in BUILT_IN])


@st.composite
def engines(draw, ample_kv=None, on_overflow=None):
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
        on_blocked=draw(st.sampled_from(["stop", "skip"])),
        on_overflow=on_overflow or draw(st.sampled_from(["count", "preempt"])),
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
    reserve_all, preempt = config.kv_projection == "reserve-all", config.on_overflow == "preempt"
    longest = min(
        safe - reserve_all, config.kv_capacity - preempt, draw(st.sampled_from([3 * config.token_budget + 1, 40]))
    )
    prompt = st.just(1) | st.integers(1, longest)
    response = st.just(1) | st.integers(1, draw(st.sampled_from([3 * config.decode_block + 1, 30])))
    prompts = draw(st.lists(prompt, min_size=n, max_size=n))
    responses = draw(st.lists(response, min_size=n, max_size=n))
    if reserve_all or preempt:
        responses = np.minimum(responses, (safe if reserve_all else config.kv_capacity) - np.array(prompts))
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
def cases(draw, max_size=24, **fixed):
    """(requests, config): a load that its engine can serve; `fixed` as in `engines`."""
    config = draw(engines(**fixed))
    return draw(loads(config, max_size=max_size)), config


@st.composite
def known_cases(draw, drawn=cases):
    """A load with predicted lengths that may be wrong, and a few clients."""
    requests, config = draw(drawn())
    n = len(requests)
    predicted = draw(st.lists(st.integers(1, 6), min_size=n, max_size=n))
    client = draw(st.lists(st.integers(0, min(3, n) - 1), min_size=n, max_size=n))
    return requests.replace(predicted_tokens=predicted, client=client), config


@st.composite
def pressed_cases(draw):
    """(requests, config) of a preempting engine whose budget lets in more requests than its KV cache can see through."""
    budget = draw(st.integers(4, 16))
    config = dataclasses.replace(
        draw(engines(ample_kv=False, on_overflow="preempt")),
        token_budget=budget,
        decode_block=draw(st.integers(1, budget // 2)),
        kv_safety=draw(st.sampled_from([1.0, 0.9, 0.7])),
        kv_projection=draw(st.sampled_from(KV_PROJECTIONS[:3])),  # the fourth never overflows
    )
    n = draw(st.integers(2, 24))
    prompts = draw(st.lists(st.integers(1, 4) | st.integers(1, 14), min_size=n, max_size=n))  # 14 is 0.7 of 20
    growth = [st.integers(1, config.kv_capacity - p) for p in prompts]
    gap = st.sampled_from([0.0, 0.0, 1.0, 1.0, 3.0])
    requests = qba.Requests(
        arrival_s=np.cumsum(draw(st.lists(gap, min_size=n, max_size=n))) * config.batch_overhead_s,
        prompt_tokens=prompts,
        response_tokens=draw(st.tuples(*growth)),
        predicted_long=draw(labels(n)),
    )
    return requests, config


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
