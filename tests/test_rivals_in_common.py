"""All rival schedulers: equal to their plain-Python twins, under the engine's invariants, by name and in sweeps."""

from __future__ import annotations

import dataclasses
import inspect
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record import Record
from strategies import SMALL, flipped, known_cases, pressed_cases
from test_invariants import (
    INVARIANTS,
    SINGLE_SERVER,
    a_predicted_class_is_served_first_come_first_served,
    budget_is_left_over_only_where_nobody_can_be_admitted,
    single_server_loads,
    work_weighted_wait,
)
from twin import both

import qba
from qba.policies import PAPER, policy_by_name
from qba.rivals import (
    DRR,
    RIVALS,
    SSJF,
    WRR,
    Boost,
    BoostByLength,
    NudgeM,
    SkipJoinMLFQ,
    VLLMPriority,
    VLLMPriorityAging,
)

BY_CLASS = {Boost, NudgeM, WRR, DRR, VLLMPriority, VLLMPriorityAging}
"""First come, first served in each class."""

OPTIONS = {
    "weight": st.sampled_from([0.0, 1.0, 10.0]), "starvation": st.integers(1, 6), "k": st.integers(1, 4),
    "quantum_short": st.integers(1, 60), "quantum_long": st.integers(1, 60), "m": st.integers(0, 6),
    "priority_short": st.integers(-1, 1), "priority_long": st.integers(-1, 2),
    "credit": st.sampled_from([0.0, 0.1, 1.0]),
    "boost_short": st.sampled_from([0.0, 1.0, 3.5]), "boost_long": st.sampled_from([0.0, 1.0]),
    "decay_rate": st.sampled_from([0.01, 0.1, 2.0]), "token_s": st.sampled_from([0.001, 1.0]),
    "prompt_weight": st.sampled_from([0.0, 1.0]), "response_weight": st.sampled_from([0.0, 2.0]),
    "base_s": st.sampled_from([0.5, 2.0]), "ratio": st.sampled_from([1.5, 2.0]),
    "starvation_s": st.sampled_from([0.0, 3.0, 50.0]), "prompt_token_s": st.sampled_from([0.0, 0.25, 1.0]),
}  # fmt: skip


def rivals(kind):
    """A rival of one kind with drawn parameters."""
    return st.builds(kind, **{f.name: OPTIONS[f.name] for f in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", RIVALS)
def test_a_rival_compiled_is_the_rival_in_python(kind):
    @settings(SMALL, max_examples=60)
    @given(policy=rivals(kind), case=known_cases() | known_cases(pressed_cases))
    def hold(policy, case):
        both(case[0], policy, case[1])

    hold()


def somebody_was_refused_where_budget_is_left_over(r):
    for i in np.flatnonzero((r.batch_tokens < r.config.token_budget) & (r.evicted == 0)):
        waiting = r.waiting_after(i)
        assert not len(waiting) or max(r.kv_with(i, x) for x in waiting) > r.config.kv_safety * r.config.kv_capacity


def check(record):
    for invariant in INVARIANTS:
        if type(record.policy) in BY_CLASS:
            invariant(record)
        elif invariant is budget_is_left_over_only_where_nobody_can_be_admitted:
            somebody_was_refused_where_budget_is_left_over(record)
        elif invariant is not a_predicted_class_is_served_first_come_first_served:
            invariant(record)


@pytest.mark.parametrize("kind", RIVALS)
def test_rivals_keep_the_invariants(kind):
    @settings(SMALL, max_examples=30)
    @given(policy=rivals(kind), case=known_cases() | known_cases(pressed_cases))
    def hold(policy, case):
        check(Record(case[0], policy, case[1]))

    hold()
    requests = qba.predict_lengths(flipped(rate=40, seed=3, horizon_s=5), error=0.5)
    for options in ({}, {"on_blocked": "skip", "on_overflow": "preempt"}):
        check(Record(requests, kind(), qba.EngineConfig(**options)))


@settings(SMALL, max_examples=40)
@given(requests=single_server_loads(), projection=st.sampled_from(["reserve-prompt", "chunk"]))
def test_rivals_keep_the_conservation_law(requests, projection):
    config = qba.EngineConfig(**SINGLE_SERVER, kv_projection=projection)
    assert len({work_weighted_wait(requests, kind(), config) for kind in (qba.FCFS, *RIVALS)}) == 1


@pytest.mark.parametrize("kind", RIVALS)
def test_a_rival_is_found_by_name_and_says_where_it_comes_from(kind):
    assert policy_by_name(kind.__name__) == kind()
    assert f"{kind.__name__}.rule_class" == kind.rule_class.__qualname__
    text = inspect.getdoc(kind)
    assert "Source" in text
    assert all(f.name in text for f in dataclasses.fields(kind)), kind


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WRR(k=0), "WRR: k = 0, but it must be a whole number of at least 1"),
        (lambda: DRR(quantum_long=0), "quantum_long = 0"),
        (lambda: BoostByLength(decay_rate=0), "decay_rate = 0, but it must be a finite number above 0"),
        (lambda: SkipJoinMLFQ(ratio=1), "ratio = 1"),
        (lambda: policy_by_name("SSJF", k=3), "SSJF has no parameter 'k'"),
        (lambda: policy_by_name("SJF"), "there are FCFS, PSF, AA, QBA.* SSJF"),
        (lambda: qba.policy(limits={"h": {}})(type("Odd", (), {"key": lambda self, request: 0})), "limits name 'h'"),
    ],
)
def test_an_impossible_rival_is_refused(make, message):
    with pytest.raises(qba.InputError, match=message):
        make()


def test_rivals_join_sweeps_with_errors_of_the_length():
    errors = {"length_error": [0, 0.5], "rank_noise": [0, 0.3]}
    swept = qba.sweep([qba.PSF(), SSJF()], rate=33, seeds=2, progress=False, **errors).wait_mean_s
    psf, ssjf = (swept.sel(policy=name).squeeze() for name in ("PSF", "SSJF"))
    assert (psf == psf.isel(length_error=0, rank_noise=0)).all()
    for error, noise in [(0, 0), (0.5, 0), (0.5, 0.3)]:
        requests = qba.predict_lengths(qba.synthetic(33, 1), error, noise, seed=1)
        mean = qba.simulate(requests, SSJF()).wait_s.mean()
        assert math.isclose(ssjf.sel(length_error=error, rank_noise=noise, seed=1), mean, rel_tol=1e-12)
    assert ssjf.sel(length_error=0.5, rank_noise=0.3).mean() > ssjf.sel(length_error=0, rank_noise=0).mean()
    assert set(PAPER).isdisjoint(RIVALS)
