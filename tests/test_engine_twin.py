"""The compiled engine against its plain-Python twin (tests/naive.py), and both against cases worked by hand.

Precision: every per-request time and flag, every scalar and every column of the batch record is *equal*, to the last
bit, NaN counting as equal to NaN. No tolerance is used anywhere in this file.
"""

from __future__ import annotations

import dataclasses
import math

import naive
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from strategies import KV_PROJECTIONS, POLICIES, SMALL, cases, flipped, policy_of, pressed_cases, table
from twin import both, check, unit_engine

import qba
from qba.policies import BUILT_IN

TWINNED = [kind for kind in BUILT_IN if kind().name in naive.POLICY_NAMES]


# ------------------------------------------------------------------------------------------------------ drawn cases


@pytest.mark.parametrize("kind", TWINNED)
@pytest.mark.parametrize("drawn", [cases, pressed_cases])
def test_engine_equals_twin(drawn, kind):
    """All options drawn together with everything else."""

    @settings(SMALL, max_examples=300)
    @given(case=drawn(), policy=policy_of(kind))
    def agree(case, policy):
        both(case[0], policy, case[1])

    agree()


@pytest.mark.parametrize("kind", TWINNED)
def test_engine_equals_twin_where_no_option_is_set(kind):
    @settings(SMALL, max_examples=100)
    @given(case=cases(), policy=policy_of(kind))
    def agree(case, policy):
        requests, config = case
        options = ("kv_projection", "decode_partial", "on_blocked", "on_overflow")
        config = dataclasses.replace(config, **{name: getattr(qba.EngineConfig(), name) for name in options})
        if kind is qba.AA:
            policy = qba.AA(policy.aging_quantile)
        elif kind is qba.QBA:
            policy = qba.QBA(policy.quota, policy.aging_quantile)
        both(requests, policy, config)

    agree()


@settings(SMALL, max_examples=50)
@given(case=cases(max_size=12))
def test_run_does_not_depend_on_recording_or_on_earlier_calls(case):
    requests, config = case
    for policy in POLICIES:
        run, batches = qba.simulate(requests, policy, config, record=True)
        again, batches_again = qba.simulate(requests, policy, config, record=True)
        xr.testing.assert_identical(run, again)
        xr.testing.assert_identical(batches, batches_again)
        xr.testing.assert_identical(run, qba.simulate(requests, policy, config))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", TWINNED)
def test_engine_equals_twin_on_the_default_workload(kind, seed):
    """A few hundred requests past saturation, with wrong labels, through the paper's engine."""
    requests = flipped(rate=40, seed=seed)
    run, _ = both(requests, kind(), qba.EngineConfig())
    assert run["blocked_admissions"] > 0  # the load is heavy enough to meet the KV rule
    if kind().name in naive.AGING:
        assert 0 < run["promoted_fraction"] < 1


@pytest.mark.parametrize(
    ("changes_anything", "policy", "engine"),
    [
        (False, {}, {"kv_projection": "prompt"}),
        (True, {}, {"kv_projection": "chunk"}),
        (True, {}, {"kv_projection": "reserve-all"}),
        # With blocks of 8 the safe limit lets too few requests decode at a time for the budget to cut a block.
        (True, {}, {"decode_partial": False, "decode_block": 24}),
        (True, {"aging_classes": "predicted-long"}, {}),
        (True, {"aging_sample": "queue"}, {}),
        (True, {"aging_window": 20}, {}),
        (True, {"promotion_clears": "start"}, {}),
        (True, {}, {"on_blocked": "skip"}),
        (True, {}, {"on_overflow": "preempt"}),
        (
            True,
            {"aging_classes": "predicted-long", "promotion_clears": "start"},
            {"kv_projection": "chunk", "decode_partial": False},
        ),
        (
            True,
            {"aging_sample": "queue", "aging_classes": "predicted-long"},
            {"on_blocked": "skip", "on_overflow": "preempt", "kv_projection": "chunk"},
        ),
    ],
)
def test_engine_equals_twin_with_each_option_on_the_default_workload(changes_anything, policy, engine):
    requests = flipped(rate=40, seed=1)
    run, _ = both(requests, qba.QBA(**policy), qba.EngineConfig(**engine))
    plain = qba.EngineConfig(decode_block=engine.get("decode_block", 8))
    assert run.equals(qba.simulate(requests, qba.QBA(), plain)) != changes_anything


@pytest.mark.parametrize("kind", TWINNED)
def test_engine_equals_twin_where_budgets_are_tiny(kind):
    """Hundreds of requests, of which many wait, through an engine with q = B = 1 and through one with q > B."""
    rng = np.random.default_rng(5)
    requests = qba.Requests(
        arrival_s=np.cumsum(rng.integers(0, 5, 200)) * 0.25,
        prompt_tokens=rng.integers(1, 6, 200),
        response_tokens=rng.integers(1, 6, 200),
        true_long=rng.random(200) < 0.5,
        predicted_long=rng.random(200) < 0.3,
    )
    for budget, block, capacity in [(1, 1, 20), (3, 5, 20), (7, 2, 30)]:
        sizes = {"token_budget": budget, "decode_block": block, "kv_capacity": capacity, "batch_overhead_s": 0.25}
        both(requests, kind(), unit_engine(**sizes))
        both(requests, kind(), unit_engine(**sizes, on_blocked="skip", on_overflow="preempt"))


# -------------------------------------------------------------------------------------------- cases worked by hand


def test_fcfs_chunks_a_prompt_over_batches_by_hand():
    # B = 4, q = 2, T(b) = 1 + max(0, b - 2)/2. Request 0: P 6, D 3; request 1: P 3, D 1; both there at 0.
    # t=0    0 prefills 4 of 6                            b=4, T=2
    # t=2    0 prefills 2, 1 starts with 2 of 3           b=4, T=2
    # t=4    0 decodes 2 of 3, 1 prefills 1               b=3, T=1.5
    # t=5.5  0 decodes 1, 1 decodes 1                     b=2, T=1     both leave at 6.5
    engine = unit_engine(token_budget=4, decode_block=2, token_time_s=0.5, knee_tokens=2)
    run, batches = both(table([(0, 6, 3, "S"), (0, 3, 1, "S")]), qba.FCFS(), engine)
    check(batches, time_s=[0, 2, 4, 5.5], duration_s=[2, 2, 1.5, 1], decode_tokens=[0, 0, 2, 2])
    check(batches, prefill_tokens=[4, 4, 1, 0], live_kv_tokens=[4, 8, 11, 13], waiting_short=[2, 1, 0, 0])
    check(batches, threshold_s=[np.nan] * 4, admissions=[1, 1, 0, 0])
    check(run, start_s=[0, 2], prefill_end_s=[4, 5.5], first_token_s=[5.5, 6.5], finish_s=[6.5, 6.5], wait_s=[0, 2])
    check(run, batches=4, tokens=13, busy_s=6.5, makespan_s=6.5, throughput_tokens_per_s=2, batch_utilization=13 / 16)
    check(run, peak_kv_tokens=13, promoted_fraction=np.nan, aged_fraction=np.nan)


def test_the_clock_jumps_over_an_idle_gap_and_serves_an_arrival_on_the_boundary_by_hand():
    # One-token batches of 1 s. Request 0 (P 1, D 1) runs in [10, 12]; request 1 comes at 12, on the boundary, and
    # runs in [12, 14]; request 2 comes at 20.5 to an empty engine and starts there.
    load = table([(10, 1, 1, "S"), (12, 1, 1, "L"), (20.5, 1, 1, "S")])
    run, batches = both(load, qba.FCFS(), unit_engine(token_budget=1, decode_block=1))
    check(batches, time_s=[10, 11, 12, 13, 20.5, 21.5])
    check(batches, waiting_short=[1, 0, 0, 0, 1, 0], waiting_long=[0, 0, 1, 0, 0, 0])
    check(run, start_s=[10, 12, 20.5], finish_s=[12, 14, 22.5], wait_s=[0, 0, 0], makespan_s=12.5, busy_s=6)


def test_psf_lets_shorts_pass_by_hand():
    # B = 2, q = 1, T = 1; all P 2, D 1, there at 0; request 0 is predicted long.
    # t=0  1 starts, prefills 2              t=3  2 decodes (leaves at 4), 0 prefills its second token
    # t=1  1 decodes (leaves at 2), 2 starts t=4  0 decodes (leaves at 5)
    # t=2  2 prefills its second token, 0 starts
    load = table([(0, 2, 1, "L"), (0, 2, 1, "S"), (0, 2, 1, "S")])
    run, batches = both(load, qba.PSF(), unit_engine(token_budget=2, decode_block=1))
    check(run, start_s=[2, 0, 1], prefill_end_s=[4, 1, 3], finish_s=[5, 2, 4], batch_utilization=0.9)
    check(batches, waiting_short=[2, 1, 0, 0, 0], waiting_long=[1, 1, 1, 0, 0])


def test_aa_promotes_an_aged_request_by_hand():
    # B = 2, q = 1, T = 1, γ = 0.5; all P 2, D 1.
    # t=0  no history, θ = inf; 0 starts (wait 0)
    # t=1  history 0: θ = 0; 1 has waited 0.5, so it is promoted past 2; 0 decodes, 1 prefills 1
    # t=2  history 0, 0.5: θ = 0.25; 1 prefills 1, 2 starts (wait 1.25)
    # t=3  history 0, 0.5, 1.25: θ = 0.5; 1 decodes, 2 prefills 1       t=4  2 decodes
    load = table([(0, 2, 1, "S"), (0.5, 2, 1, "L"), (0.75, 2, 1, "S")])
    run, batches = both(load, qba.AA(aging_quantile=0.5), unit_engine(token_budget=2, decode_block=1))
    check(batches, threshold_s=[np.inf, 0, 0.25, 0.5, 0.5], promotions=[0, 1, 0, 0, 0], counter=[0] * 5, debt=[0] * 5)
    check(run, start_s=[0, 1, 2], finish_s=[2, 4, 5], promoted=[0, 1, 0], promoted_fraction=1, aged_fraction=1)


def test_waits_of_predicted_long_requests_make_the_threshold_by_hand():
    # B = 2, q = 1, T = 1, γ = 0.5; all P 2, D 1. Only the waits of 1 and 3 are looked at.
    # t=0  0 starts                              t=1  θ = inf though 0 waited 0: 2 starts before 1
    # t=2  2 prefills 1, 1 starts (wait 1.5)     t=3  θ = 1.5; 1 prefills 1
    # t=4  1 decodes; 3 has waited 1.25: not aged (the median of all waits, 0, 0.25, 1.5, is 0.25): 4 starts
    # t=5  4 prefills 1; 3 has waited 2.25: promoted
    # t=6  θ = (1.5 + 2.25)/2; 3 prefills 1      t=7  3 decodes
    load = table([(0, 2, 1, "S"), (0.5, 2, 1, "L"), (0.75, 2, 1, "S"), (2.75, 2, 1, "L"), (3.5, 2, 1, "S")])
    policy = qba.AA(aging_quantile=0.5, aging_classes="predicted-long")
    run, batches = both(load, policy, unit_engine(token_budget=2, decode_block=1))
    check(batches, threshold_s=[np.inf, np.inf, np.inf, 1.5, 1.5, 1.5, 1.875, 1.875])
    check(run, start_s=[0, 2, 1, 5, 4], finish_s=[2, 5, 4, 8, 7], promoted=[0, 0, 0, 1, 0], promoted_fraction=0.5)


def test_a_wait_equal_to_the_threshold_is_not_aged_by_hand():
    # B = 2, q = 1, T = 1, γ = 1 (θ is the largest wait so far); all P 2, D 1.
    # t=0  0 starts        t=1  θ = 0, 2 has waited 0: not aged; 0 decodes, 1 starts (wait 1)
    # t=2  θ = 1, 2 has waited 1: not aged; 1 prefills 1, 3 starts (wait 0.5) though it came later
    # t=3  1 decodes, 3 prefills 1      t=4  3 decodes; θ = 1, 2 has waited 3: promoted, prefills 1
    # t=5  θ = 3; 2 prefills 1          t=6  2 decodes
    load = table([(0, 2, 1, "S"), (0, 2, 1, "S"), (1, 2, 1, "L"), (1.5, 2, 1, "S")])
    run, batches = both(load, qba.AA(aging_quantile=1.0), unit_engine(token_budget=2, decode_block=1))
    check(batches, threshold_s=[np.inf, 0, 1, 1, 1, 3, 3])
    check(run, start_s=[0, 1, 4, 2], finish_s=[2, 4, 7, 5], promoted=[0, 0, 1, 0])


# Safe limit 8 of 10. Request 1 (P 6) finds at most 2 tokens of room left while request 0 (P 2, D 4) runs.
TIGHT = [(0, 2, 4, "S"), (0.5, 6, 1, "L"), (0.5, 1, 1, "S")]
TIGHT_ENGINE = {"token_budget": 4, "decode_block": 1, "kv_capacity": 10, "kv_safety": 0.8}


@pytest.mark.parametrize("policy", [qba.AA(aging_quantile=0.5), qba.QBA(quota=1, aging_quantile=0.5)])
def test_a_blocked_promoted_request_is_passed_over_by_hand(policy):
    # t=0  0 starts; QBA's quota of one is earned at once
    # t=1  θ = 0: 1 is aged and first. 0 decodes: live 3, 3 + 6 > 8: refused. 2 is short and waits: 1 is passed over,
    #      2 starts (3 + 1 <= 8). In ordinary order 1 is refused again, which counts once: 1
    # t=2  0, 2 decode: live 6, 1 refused, no short waits: 2.  2 leaves at 3
    # t=3  0 decodes: live 5, refused: 3     t=4  live 6, refused: 4.  0 leaves at 5
    # t=5  1 starts, promoted, prefills 4    t=6  2 more: QBA's debt is paid    t=7  1 decodes, leaves at 8
    run, batches = both(table(TIGHT), policy, unit_engine(**TIGHT_ENGINE))
    check(run, start_s=[0, 5, 1], finish_s=[5, 8, 3], promoted=[0, 1, 0], blocked_admissions=4, peak_kv_tokens=7)
    check(batches, live_kv_tokens=[2, 4, 6, 5, 6, 4, 6, 7], promotions=[0, 0, 0, 0, 0, 1, 0, 0])
    if policy.name == "QBA":
        check(batches, debt=[1, 1, 1, 1, 1, 1, 0, 0], counter=[1, 1, 1, 1, 1, 1, 0, 0])


def test_a_blocked_request_in_ordinary_order_ends_admission_by_hand():
    # As above, but first come, first served: 1 is refused at t = 1, 2, 3, 4; 2 waits behind it although it would fit.
    # t=5  1 starts, 4 of 6      t=6  1 prefills 2, 2 starts (6 + 1 <= 8)      t=7  both decode
    run, _ = both(table(TIGHT), qba.FCFS(), unit_engine(**TIGHT_ENGINE))
    check(run, start_s=[0, 5, 6], finish_s=[5, 8, 8], blocked_admissions=4)


@pytest.mark.parametrize(
    ("projection", "prompt", "start"),
    [("reserve-prompt", 8, 0), ("reserve-prompt", 9, 4), ("prompt", 8, 0), ("prompt", 9, 4), ("reserve-all", 8, 4)]
    + [("chunk", 8, 0), ("chunk", 9, 0)],
)
def test_kv_projections_by_hand(projection, prompt, start):
    # B = 4, q = 1, T = 1, M_safe = M_max = 10. Request 0: P 2, D 3; request 1: P 8 or 9, D 1; both there at 0.
    # t=0  0 prefills 2; with 1 the prompts come to 2 + 8 = 10 or 2 + 9 = 11, the tokens of this batch to 2 + 2 = 4,
    #      prompts and responses to 5 + 9 = 14. Where 1 is let in, it prefills 2, 3, 3 (and 1).
    # Where it is not, it is refused at 1, 2, 3 too, as live KV only grows; 0 leaves at 4, and 1 has the engine alone.
    load = table([(0, 2, 3, "S"), (0, prompt, 1, "S")])
    config = unit_engine(token_budget=4, decode_block=1, kv_capacity=10, kv_projection=projection)
    run, batches = both(load, qba.FCFS(), config)
    check(run, start_s=[0, start], blocked_admissions=start)
    if start:
        check(run, finish_s=[4, start + -(-prompt // 4) + 1], kv_overflows=0, peak_kv_tokens=prompt + 1)
    elif prompt == 8:
        check(batches, live_kv_tokens=[4, 8, 12, 14])
        check(run, finish_s=[4, 4], kv_overflows=2)
    else:
        check(batches, live_kv_tokens=[4, 8, 12, 14, 10])
        check(run, finish_s=[4, 5], kv_overflows=2)


@pytest.mark.parametrize(("budget", "start", "live"), [(3, 2, [3, 6, 9, 12, 3, 4]), (4, 4, [4, 6, 8, 10, 3, 4])])
def test_a_chunk_is_refused_by_the_budget_that_is_left_by_hand(budget, start, live):
    # q = 2, T = 1, M_safe = M_max = 9. Request 0: P 6, D 4; request 1: P 3, D 1, there at 2.
    # t=0, 1  0 prefills 6      t=2  0 decodes 2: live 8
    # B = 3: one token is left and fits: 1 starts, prefills 1; t=3  0 decodes 2, 1 prefills 1: live 12, 0 leaves;
    #        t=4  1 prefills 1      t=5  1 decodes
    # B = 4: two tokens are left, 8 + 2 > 9: refused, and so at t=3 with live 10; 0 leaves.  t=4  1 prefills 3
    load = table([(0, 6, 4, "S"), (2, 3, 1, "S")])
    config = unit_engine(token_budget=budget, decode_block=2, kv_capacity=9, kv_projection="chunk")
    run, batches = both(load, qba.FCFS(), config)
    check(batches, live_kv_tokens=live)
    check(run, start_s=[0, start], finish_s=[4, 6], blocked_admissions=start - 2, kv_overflows=1)


def test_reserve_all_refuses_a_request_that_could_never_run():
    # Prompt and response come to 10, the limit is 0.9 * 11 = 9.9; the prompt alone, 7, would fit.
    load = table([(0, 2, 3, "S"), (0, 7, 3, "S")])
    for projection in KV_PROJECTIONS[:-1]:
        both(load, qba.FCFS(), unit_engine(kv_capacity=11, kv_safety=0.9, kv_projection=projection))
    with pytest.raises(qba.InputError, match=r"\b1\b.*\b10\b.*\b9\.9"):
        qba.simulate(load, qba.FCFS(), unit_engine(kv_capacity=11, kv_safety=0.9, kv_projection="reserve-all"))
    both(load, qba.FCFS(), unit_engine(kv_capacity=10, kv_projection="reserve-all"))  # at the limit is not above it


@pytest.mark.parametrize(
    ("partial", "decodes", "prefills", "third_start", "first_tokens"),
    [
        (True, [0, 5, 3, 0, 1], [3, 0, 2, 1, 0], 2, [2, 2, 3, 5]),
        (False, [0, 3, 5, 0, 1], [3, 2, 0, 1, 0], 1, [2, 3, 3, 5]),
    ],
)
def test_partial_and_whole_decode_blocks_by_hand(partial, decodes, prefills, third_start, first_tokens):
    # B = 5, q = 3, T = 1. Requests 0, 1, 2: P 1, D 4, 3, 1, there at 0; request 3: P 3, D 1, comes at 0.5.
    # t=0  0, 1, 2 prefill
    # Partial: t=1  0 decodes 3, 1 the 2 that are left
    #          t=2  0, 1, 2 decode 1 each and leave, 3 prefills 2
    # Whole:   t=1  0 decodes 3, 1 would take 3 of the 2 that are left: it gets nothing, and as 2 comes after it, nor
    #               does 2, whose one token would fit; 3 starts with the 2
    #          t=2  0 decodes 1, 1 decodes 3, 2 decodes 1: they leave, and nothing is left for 3
    # Both:    t=3  3 prefills 1      t=4  3 decodes
    load = table([(0, 1, 4, "S"), (0, 1, 3, "S"), (0, 1, 1, "S"), (0.5, 3, 1, "S")])
    config = unit_engine(token_budget=5, decode_block=3, decode_partial=partial)
    run, batches = both(load, qba.FCFS(), config)
    check(batches, decode_tokens=decodes, prefill_tokens=prefills)
    check(run, start_s=[0, 0, 0, third_start], first_token_s=first_tokens, finish_s=[3, 3, 3, 5])


def test_whole_blocks_that_exceed_the_budget_are_refused():
    assert unit_engine(token_budget=4, decode_block=4, decode_partial=False).decode_block == 4
    with pytest.raises(qba.InputError, match="decode_block = 5.*token_budget = 4"):
        unit_engine(token_budget=4, decode_block=5, decode_partial=False)


@pytest.mark.parametrize(("capacity", "overflows"), [(6, 3), (7, 2), (12, 0)])
def test_overflows_are_counted_by_hand(capacity, overflows):
    # B = 4, q = 2, T = 1, M_safe = M_max; both requests P 3, D 4. 1 is let in with 3 + 3 = 6 projected tokens.
    # t=0  0 prefills 3, 1 prefills 1      live 4       t=2  both decode 2    live 12, then 0 leaves with its 7
    # t=1  0 decodes 2, 1 prefills 2       live 8       t=3  1 decodes 2      live 7
    # Only more than M_max is an overflow: 8, 12, 7 against 6; 8, 12 against 7; none against 12.
    engine = unit_engine(token_budget=4, decode_block=2, kv_capacity=capacity)
    run, batches = both(table([(0, 3, 4, "S")] * 2), qba.FCFS(), engine)
    check(batches, live_kv_tokens=[4, 8, 12, 7])
    check(run, start_s=[0, 0], kv_overflows=overflows, peak_kv_tokens=12, blocked_admissions=0)


def test_qba_debt_life_cycle_by_hand():
    # B = 4, q = 1, T = 1, k = 2, γ = 0.5; two longs (P 5) and eight shorts (P 2), D 1, all there at 0.
    # t=0  θ = inf: shorts 2, 3 start and complete: c = 2, debt
    # t=1  θ = 0: long 0 is promoted, prefills 2 beside the decodes of 2, 3
    # t=2  0 prefills 3. 1 is aged, but the debt is being paid: short 4 starts, prefills 1. 0 completes: c = 0, no debt
    # t=3  0 decodes, 4 prefills 1, 5 prefills 2: c = 1, 2, debt
    # t=4  4, 5 decode, long 1 is promoted, prefills 2
    # t=5  1 prefills 3, 6 prefills 1; 1 completes: c = 0           t=6  1 decodes, 6 and 7 complete: c = 2, debt
    # t=7  no long is left to pay: 8 completes, c stays 2           t=8  so does 9          t=9  9 decodes
    # History at t: 0, 0, 1, 2, 3, ... up to the last start; θ is its median.
    load = table([(0, 5, 1, "L")] * 2 + [(0, 2, 1, "S")] * 8)
    run, batches = both(load, qba.QBA(quota=2, aging_quantile=0.5), unit_engine(token_budget=4, decode_block=1))
    check(batches, threshold_s=[np.inf, 0, 0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5], counter=[2, 2, 0, 2, 2, 0, 2, 2, 2, 2])
    check(batches, debt=[1, 1, 0, 1, 1, 0, 1, 1, 1, 1], promotions=[0, 1, 0, 0, 1, 0, 0, 0, 0, 0])
    check(batches, admissions=[2, 1, 1, 1, 1, 1, 1, 1, 1, 0])
    check(run, start_s=[1, 4, 0, 0, 2, 3, 5, 6, 7, 8], promoted=[1, 1] + [0] * 8, promoted_fraction=1, aged_fraction=1)


@pytest.mark.parametrize(
    ("clears", "counter", "debt"),
    [("prefill-end", [2, 1, 1], [1, 0, 0]), ("start", [2, 2, 2], [1, 1, 1])],
)
def test_qba_counts_completions_in_their_order_by_hand(clears, counter, debt):
    # B = 6, q = 1, T = 1, k = 2, γ = 0.5, D 1.
    # t=0  shorts 0, 1 (P 1) complete: c = 2, debt; short 2 prefills 4 of 5
    # t=1  0, 1 decode, 2 prefills 1, long 3 (P 1) is promoted, short 4 (P 1) starts. They complete in this order:
    #      2 while debt is set: not counted; 3: c = 0, no debt; 4: c = 1.    t=2  2, 3, 4 decode
    #      Where 3 clears at its start, 2 finds no debt: c = 1, and 4 brings c = 2 and the next debt.
    load = table([(0, 1, 1, "S"), (0, 1, 1, "S"), (0, 5, 1, "S"), (0, 1, 1, "L"), (0, 1, 1, "S")])
    policy = qba.QBA(quota=2, aging_quantile=0.5, promotion_clears=clears)
    run, batches = both(load, policy, unit_engine(token_budget=6, decode_block=1))
    check(batches, counter=counter, debt=debt)
    check(run, start_s=[0, 0, 0, 1, 1], finish_s=[2, 2, 3, 3, 3], promoted=[0, 0, 0, 1, 0])


@pytest.mark.parametrize(
    ("clears", "starts", "counter"),
    [
        ("prefill-end", [0, 0, 1, 5, 3, 4], [1, 1, 1, 0, 1, 0, 0]),
        ("start", [0, 0, 1, 4, 3, 5], [1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_qba_earns_a_promotion_while_one_is_in_prefill_by_hand(clears, starts, counter):
    # B = 4, q = 1, T = 1, k = 1, γ = 0.5; P 1, 4, 6, 2, 4, 2, D 1, all there at 0; 2 and 3 are long.
    # t=0  0 prefills 1, 1 prefills 3; 0 brings c = 1 and debt
    # t=1  0 decodes, 1 prefills 1, long 2 is promoted and prefills 2.
    #      Clearing at the start, 1 completes after it: c = 1, debt; else 1 is not counted and the debt is still the old
    # t=2  1 decodes, 2 prefills 3
    # t=3  2 prefills its last; while it is in prefill 3 is not promoted, whatever the debt: 4 starts, prefills 3.
    #      Clearing at the end of prefill: c = 0, no debt; else nothing changes
    # t=4  2 decodes, 4 prefills 1. With a debt 3 is promoted (c = 0), prefills 2, and 4 brings c = 1 and debt;
    #      without, 5 starts, prefills 2, and 4 brings c = 1 and debt
    # t=5  4 decodes and 5 or 3 decodes; then 5 starts, not counted; or 3, promoted, which pays: c = 0
    # t=6  the last one decodes
    rows = [(1, "S"), (4, "S"), (6, "L"), (2, "L"), (4, "S"), (2, "S")]
    load = table([(0, prompt, 1, label) for prompt, label in rows])
    policy = qba.QBA(quota=1, aging_quantile=0.5, promotion_clears=clears)
    run, batches = both(load, policy, unit_engine(token_budget=4, decode_block=1))
    check(batches, threshold_s=[np.inf, 0, 0, 0, 0.5, 1, 2], counter=counter, debt=counter)
    check(run, start_s=starts, promoted=[0, 0, 1, 1, 0, 0])


@pytest.mark.parametrize(("arrival", "quota", "debt", "aged"), [(1, 1, True, 0), (0.5, 6, False, 1)])
def test_qba_long_in_ordinary_order_is_not_promoted_by_hand(arrival, quota, debt, aged):
    # B = 4, q = 1, T = 1. Short 0 (P 2) completes at 1: c = 1. Long 1 (P 2) starts at t = 1, where θ = 0:
    # having come at 1 it is not aged, so a debt is not paid; having come at 0.5 it is aged, but nothing is owed.
    load = table([(0, 2, 1, "S"), (arrival, 2, 1, "L")])
    run, batches = both(load, qba.QBA(quota=quota), unit_engine(token_budget=4, decode_block=1))
    check(batches, counter=[1, 1, 1], debt=[debt] * 3)
    check(run, start_s=[0, 1], finish_s=[2, 3], promoted=[0, 0], promoted_fraction=0, aged_fraction=aged)


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [(1.0, 8.0), (0.5, 2.0), (0.75, 4.0), (0.25, 1.0), (0.8, 4.0 + (0.8 * 4 - 3) * 4.0), (0.1, 0.4)],
)
def test_the_twins_quantile_by_hand(gamma, expected):
    # Sample 0, 1, 2, 4, 8: γ(n - 1) is 4, 2, 3, 1, 3.2, 0.4; the last one lies 0.4 of the way from 0 to 1.
    assert naive.quantile([4.0, 0.0, 8.0, 1.0, 2.0], gamma) == expected
    assert math.isclose(expected, np.quantile([0, 1, 2, 4, 8], gamma))
