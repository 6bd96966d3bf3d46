"""The boosts of gamma-boost: closed forms for equal and for exponential sizes, and the defaults of the policies."""

from __future__ import annotations

import math

import numpy as np
import pytest

import qba
from qba.rivals import (
    Boost,
    BoostByLength,
    NudgeM,
    boosts,
)


def test_boosts_of_equal_sizes():
    # All of one size s: E[e^(gamma s)] = 1 + gamma/lambda, and b = (1/gamma) ln((lambda + gamma) / gamma).
    requests = qba.Requests(arrival_s=np.zeros(4), prompt_tokens=[10] * 4, response_tokens=[10] * 4)
    found = boosts(requests, 30, qba.EngineConfig())
    s = 20 * found.token_s
    assert found.token_s == pytest.approx((0.003 + 2e-5 * 64) / 128)
    assert found.decay_rate == pytest.approx(30 * math.expm1(found.decay_rate * s), rel=1e-9)
    assert found.short == pytest.approx(
        math.log((30 + found.decay_rate) / found.decay_rate) / found.decay_rate, rel=1e-9
    )
    assert found.long == 0  # nobody is long
    # The formula by length is that of a class in which all have this size.
    policy = BoostByLength(decay_rate=found.decay_rate, token_s=found.token_s)
    key = policy.rule_class.methods["key"](policy.rule, policy.rule_class.seen(0, 0.0, 10, 10))
    assert key == pytest.approx(-found.short, rel=1e-9)


def test_boosts_of_exponential_sizes_are_those_of_a_markovian_queue():
    # M/M/1: gamma = mu - lambda.
    sizes = np.rint(np.random.default_rng(1).standard_exponential(200_000) * 10_000).astype(int) + 1
    requests = qba.Requests(arrival_s=np.zeros(len(sizes)), prompt_tokens=np.ones(len(sizes)), response_tokens=sizes)
    mean = (sizes + 1).mean() * boosts(requests, 1).token_s
    found = boosts(requests, 0.6 / mean, clip=1)
    assert found.decay_rate == pytest.approx(0.4 / mean, rel=0.02)
    assert found.short > found.long > 0


def test_the_default_boosts_are_those_of_the_default_workload():
    found = boosts(qba.synthetic(32, requests=100_000), 32, utilization=0.68)
    assert (found.short, found.long) == pytest.approx((Boost().boost_short, Boost().boost_long), rel=0.01)
    assert (found.decay_rate, found.token_s) == pytest.approx(
        (BoostByLength().decay_rate, BoostByLength().token_s), rel=0.01
    )
    assert NudgeM().m == round(32 * (found.short - found.long))


def test_boosts_need_a_load_below_one():
    with pytest.raises(qba.InputError, match="makes a load of 1.0"):
        boosts(qba.synthetic(32), 40)
    with pytest.raises(qba.InputError, match="clip = 0"):
        boosts(qba.synthetic(32), 30, clip=0)
