"""Preemption: an overfull KV cache evicts requests, and they come back. No livelock, nothing lost, nothing twice.

Cases worked by hand on engine and twin, then what must hold on every run, from `run` and `batches` alone. The general
invariants (test_invariants.py) hold with preemption too; here is what is special to it.
"""

from __future__ import annotations

import dataclasses

import naive
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from record import Record
from strategies import SMALL, cases, flipped, policies, policy_of, pressed_cases, table
from test_invariants import INVARIANTS
from twin import both, check, unit_engine

import qba
from qba.policies import BUILT_IN

# -------------------------------------------------------------------------------------------- cases worked by hand


def preempting(capacity, **options):
    return unit_engine(kv_capacity=capacity, on_overflow="preempt", **options)


def test_an_unfinished_prefill_is_evicted_by_hand():
    # B = 3, q = 2, T = 1, M_safe = M_max = 8. Request 0: P 2, D 5; request 1: P 6, D 1; both there at 0.
    # t=0  0 prefills 2; 2 + 6 <= 8: 1 starts, prefills 1       live 3
    # t=1  0 decodes 2, 1 prefills 1                            live 6
    # t=2  0 decodes 2, 1 prefills 1                            live 9 > 8: 1, admitted last, loses its 3 of 6
    # t=3  0 decodes 1 and leaves; 1 is refused, 7 + 6 > 8      live 7
    # t=4  1 comes back, prefills 3      t=5  3 more: this is its prefill's end      t=6  it decodes
    load = table([(0, 2, 5, "S"), (0, 6, 1, "S")])
    run, batches = both(load, qba.FCFS(), preempting(8, token_budget=3, decode_block=2))
    check(batches, time_s=[0, 1, 2, 3, 4, 5, 6], live_kv_tokens=[3, 6, 9, 7, 3, 6, 7], admissions=[2, 0, 0, 0, 0, 0, 0])
    check(batches, evictions=[0, 0, 1, 0, 0, 0, 0], readmissions=[0, 0, 0, 0, 1, 0, 0])
    check(batches, decode_tokens=[0, 2, 2, 1, 0, 0, 1], prefill_tokens=[3, 1, 1, 0, 3, 3, 0])
    check(batches, waiting_short=[2, 0, 0, 0, 0, 0, 0])  # evicted requests are not counted
    check(run, start_s=[0, 0], wait_s=[0, 0], prefill_end_s=[1, 6], first_token_s=[2, 7], finish_s=[4, 7])
    check(run, tokens=17, throughput_tokens_per_s=17 / 7, batch_utilization=17 / 7 / 3)  # 14 and 3 once more
    check(run, evictions=1, kv_overflows=1, blocked_admissions=1, peak_kv_tokens=9)


@pytest.mark.parametrize(
    ("on_blocked", "times", "live", "thresholds"),
    [
        ("stop", (8, 9, 10), [4, 7, 9, 11, 7, 8, 9, 4, 6, 8, 7, 8], [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]),
        ("skip", (4, 5, 6), [4, 7, 9, 11, 8, 10, 9, 4, 5, 6, 7, 8], [0.5, 1.5] + [np.inf] * 4),
    ],
)
def test_a_decoding_request_is_evicted_by_hand(on_blocked, times, live, thresholds):
    # B = 4, q = 1, T = 1, M_safe = M_max = 10. Request 0: P 3, D 6; 1: P 3, D 5; 2: P 1, D 1, comes at 2.5.
    # t=0  0 prefills 3, 1 starts, prefills 1                   live 4
    # t=1  0 decodes, 1 prefills 2                              live 7
    # t=2  both decode                                          live 9
    # t=3  both decode; 2 is refused                            live 11 > 10: 1 loses P and its 2 generated tokens
    # t=4  0 decodes: live 7. 1 needs 3 + 2 prefilled and is refused. Stop: 2 is not asked, though it would fit.
    #      Skip: 2 starts, prefills 1: live 8
    # t=5  0 decodes (skip: and 2, which leaves), 1 is refused
    # t=6  0 decodes its last and leaves; 1 is refused
    # t=7  1 comes back, prefills 4 of 5
    # t=8  1 prefills 1 (stop: 2 starts beside it)              its prefill's end stays 2
    # t=9, 10, 11  1 decodes the 3 tokens of 5 that are left (stop: 2 decodes at 9)
    # QBA's counter: 0 completes at 1, 1 at 2, 2 at its time; 1 once more at 9, which is no admission.
    # θ is the median of the waits of those who wait to start: nobody's but that of 2 from t=1 on.
    start, prefill_end, first_token = times  # of request 2
    load = table([(0, 3, 6, "S"), (0, 3, 5, "S"), (2.5, 1, 1, "S")])
    policy = qba.QBA(aging_quantile=0.5, aging_sample="queue")
    config = preempting(10, token_budget=4, decode_block=1, on_blocked=on_blocked)
    run, batches = both(load, policy, config)
    check(batches, live_kv_tokens=live, threshold_s=[0, np.inf, np.inf, *thresholds] + [np.inf] * 3)
    check(batches, counter=[1] + [2] * (prefill_end - 2) + [3] * (13 - prefill_end))
    check(batches, evictions=np.arange(12) == 3, readmissions=np.arange(12) == 7)
    check(run, start_s=[0, 0, start], prefill_end_s=[1, 2, prefill_end], first_token_s=[2, 3, first_token])
    check(run, finish_s=[7, 12, first_token], wait_s=[0, 0, start - 2.5])
    check(run, blocked_admissions=4, evictions=1, tokens=19 + 5, kv_overflows=1)


def test_a_request_alone_comes_back_beyond_the_safe_limit_by_hand():
    # B = 4, q = 2, T = 1, M_max = 12, M_safe = 6. Requests 0, 1: P 3, D 8; 2: P 1, D 1, comes at 4.5.
    # t=0  0 prefills 3, 1 starts (3 + 3 <= 6), prefills 1      live 4
    # t=1  0 decodes 2, 1 prefills 2                            live 8
    # t=2  both decode 2                                        live 12: not above M_max
    # t=3  both decode 2                                        live 16: 1 loses its 3 + 4, more than M_safe
    # t=4  0 decodes its last 2 and leaves; 1 is refused        live 11
    # t=5  nothing is in flight: 1 comes back, prefills 4       live 4
    # t=6  1 prefills 3; 2 is refused, 7 + 1 > 6                live 7
    # t=7, 8  1 decodes 2, then 2; 2 is refused                 live 9, 11
    # t=9  2 starts      t=10  2 decodes
    load = table([(0, 3, 8, "S"), (0, 3, 8, "S"), (4.5, 1, 1, "S")])
    run, batches = both(load, qba.FCFS(), preempting(12, kv_safety=0.5, token_budget=4, decode_block=2))
    check(batches, live_kv_tokens=[4, 8, 12, 16, 11, 4, 7, 9, 11, 1, 2])
    check(batches, evictions=np.arange(11) == 3, readmissions=np.arange(11) == 5)
    check(run, start_s=[0, 0, 9], prefill_end_s=[1, 2, 10], first_token_s=[2, 3, 11], finish_s=[5, 9, 11])
    check(run, blocked_admissions=4, evictions=1, kv_overflows=1)


@pytest.mark.parametrize(("on_blocked", "blocked"), [("stop", 4), ("skip", 6)])
def test_the_one_evicted_last_comes_back_first_by_hand(on_blocked, blocked):
    # B = 6, q = 2, T = 1, M_safe = M_max = 7. Requests 0, 1, 2: P 2, D 5, 3, 4; all there at 0.
    # t=0  all prefill                                          live 6
    # t=1  all decode 2                                         live 12: 2 is evicted, and as 8 > 7 also 1: live 4
    # t=2  0 decodes 2: live 6, 1 is refused: 6 + 4 > 7. Skip: so is 2
    # t=3  0 decodes 1: live 7, the same; 0 leaves
    # t=4  1 comes back first, prefills 2 + 2; 2 is refused, 4 + 4 > 7
    # t=5  1 decodes 1 and leaves; 2 is refused      t=6  2 comes back, prefills 2 + 2      t=7  2 decodes 2
    load = table([(0, 2, 5, "S"), (0, 2, 3, "S"), (0, 2, 4, "S")])
    run, batches = both(load, qba.PSF(), preempting(7, token_budget=6, decode_block=2, on_blocked=on_blocked))
    check(batches, live_kv_tokens=[6, 12, 6, 7, 4, 5, 4, 6], evictions=[0, 2, 0, 0, 0, 0, 0, 0])
    check(batches, readmissions=[0, 0, 0, 0, 1, 0, 1, 0], admissions=[3, 0, 0, 0, 0, 0, 0, 0])
    check(
        run, prefill_end_s=[1] * 3, first_token_s=[2] * 3, finish_s=[4, 6, 8], blocked_admissions=blocked, evictions=2
    )


def test_a_request_is_evicted_again_by_hand():
    # B = 2, q = 1, T = 1, M_safe = M_max = 12, only chunks projected. Request 0: P 2, D 10; 1: P 2, D 6; there at 0.
    # t=0  0 prefills 2                t=1, 2  0 decodes, 1 prefills 1      t=3 ... 6  both decode: live 8, 10, 12, 14:
    #      1 has generated 4 and is evicted: live 8
    # t=7  0 decodes: live 9; a chunk of 1 fits: 1 comes back, prefills 1 of 6       t=8  1 prefills 1: live 12
    # t=9  0 decodes, 1 prefills 1: live 14: 1 is evicted again, with 3 of 6 prefilled
    # t=10 0 decodes its last: live 12, no chunk fits; 0 leaves
    # t=11, 12, 13  1 comes back and prefills 2 each       t=14, 15  1 decodes its last two
    load = table([(0, 2, 10, "S"), (0, 2, 6, "S")])
    config = preempting(12, token_budget=2, decode_block=1, kv_projection="chunk")
    run, batches = both(load, qba.FCFS(), config)
    check(batches, live_kv_tokens=[2, 4, 6, 8, 10, 12, 14, 10, 12, 14, 12, 2, 4, 6, 7, 8])
    check(batches, evictions=np.isin(range(16), [6, 9]), readmissions=np.isin(range(16), [7, 11]))
    check(run, start_s=[0, 1], prefill_end_s=[1, 3], first_token_s=[2, 4], finish_s=[11, 16])
    check(run, tokens=20 + 6 + 3, evictions=2, blocked_admissions=1)


@pytest.mark.parametrize(
    ("on_blocked", "start", "live", "blocked", "overflows"),
    [
        ("stop", 11, [2, 4, 6, 8, 10, 7, 8, 9, 2, 4, 6, 8, 2], 3, 1),
        ("skip", 5, [2, 4, 6, 8, 10, 8, 10, 9, 2, 4, 6, 7], 2, 2),
    ],
)
def test_a_promoted_request_is_evicted_before_its_prefill_ends_by_hand(on_blocked, start, live, blocked, overflows):
    # B = 2, q = 1, T = 1, M_safe = M_max = 9, k = 1, γ = 0.5. Short 0: P 2, D 7; long 1: P 6, D 1, comes at 0.5;
    # long 2: P 1, D 1, comes at 1.5.
    # t=0  0 prefills 2: c = 1, debt
    # t=1  θ = 0, 1 is promoted (3 + 6 <= 9); it prefills 1 at t = 1, 2, 3, 4, beside the decodes of 0: live 4, 6, 8, 10:
    #      1 is evicted with 4 of 6: live 6. The debt stays
    # t=5  0 decodes: live 7; 1 is refused. Skip: 2 is aged and there is a debt, but 1 is still to pay it: 2 starts in its
    #      turn and is not promoted
    # t=6  0 decodes, 1 is refused. Skip: no budget is left for 1, as 2 decodes: live 10, but it leaves with 2, and
    #      with 8 nobody is evicted
    # t=7  0 decodes and leaves, 1 is refused
    # t=8, 9, 10  1 comes back and prefills 2 each: its prefill ends at 11, c = 0, no debt
    # t=11 1 decodes. Stop: 2 starts in its turn, aged, but nothing is owed     t=12  2 decodes
    load = table([(0, 2, 7, "S"), (0.5, 6, 1, "L"), (1.5, 1, 1, "L")])
    policy = qba.QBA(quota=1, aging_quantile=0.5)
    config = preempting(9, token_budget=2, decode_block=1, on_blocked=on_blocked)
    run, batches = both(load, policy, config)
    check(batches, live_kv_tokens=live, debt=np.arange(len(live)) < 10, counter=np.arange(len(live)) < 10)
    check(batches, evictions=np.arange(len(live)) == 4, readmissions=np.arange(len(live)) == 8)
    check(run, start_s=[0, 1, start], prefill_end_s=[1, 11, start + 1], finish_s=[8, 12, start + 2])
    check(run, promoted=[0, 1, 0], promoted_fraction=0.5, aged_fraction=1)
    check(run, blocked_admissions=blocked, evictions=1, kv_overflows=overflows)


def test_a_promoted_request_that_comes_back_pays_no_second_debt_by_hand():
    # B = 6, q = 1, T = 1, M_safe = M_max = 9, k = 1, γ = 0.5, skip. Short 0: P 2, D 6; long 1: P 2, D 5, comes at 0.5;
    # short 2: P 1, D 1, comes at 4.5; long 3: P 2, D 1, comes at 5.25.
    # t=0  0 prefills: c = 1, debt
    # t=1  0 decodes, 1 is promoted: live 5; its prefill ends: c = 0, no debt
    # t=2, 3, 4  both decode: live 7, 9, 11: 1 is evicted with 3 generated: live 6
    # t=5  0 decodes: live 7, 1 is refused (7 + 5 > 9), 2 starts: live 8; c = 1, debt
    # t=6  0 and 2 decode: live 10, both leave; 1 is refused; 3 (waited 0.75, θ = 0.5) is due, but refused
    # t=7  1 comes back, prefills 5; 3 is promoted all the same, as 1 has paid; it prefills 1. 1 is prefilled: the debt
    #      that 2 earned stays
    # t=8  1 decodes, 3 prefills 1: c = 0, no debt      t=9  both decode and leave: live 10
    load = table([(0, 2, 6, "S"), (0.5, 2, 5, "L"), (4.5, 1, 1, "S"), (5.25, 2, 1, "L")])
    config = preempting(9, token_budget=6, decode_block=1, on_blocked="skip")
    run, batches = both(load, qba.QBA(quota=1, aging_quantile=0.5), config)
    owed = [1, 0, 0, 0, 0, 1, 1, 1, 0, 0]
    check(batches, live_kv_tokens=[2, 5, 7, 9, 11, 8, 10, 6, 8, 10], debt=owed, counter=owed)
    check(batches, evictions=np.arange(10) == 4, readmissions=np.arange(10) == 7)
    check(run, start_s=[0, 1, 5, 7], prefill_end_s=[1, 2, 6, 9], first_token_s=[2, 3, 7, 10], finish_s=[7, 10, 7, 10])
    check(run, promoted=[0, 1, 0, 1], blocked_admissions=3, evictions=1, kv_overflows=3)


def test_a_request_that_outgrows_the_cache_is_refused():
    load = table([(0, 2, 3, "S"), (0, 4, 7, "S")])
    both(load, qba.FCFS(), preempting(11))
    both(load, qba.FCFS(), unit_engine(kv_capacity=10))
    with pytest.raises(qba.InputError, match=r"\b1\b.*\b11\b.*\b10\b"):
        qba.simulate(load, qba.FCFS(), preempting(10))
    with pytest.raises(ValueError, match=r"\b1\b.*\b11\b.*\b10\b"):
        naive.simulate(load, qba.FCFS(), preempting(10))


# ------------------------------------------------------------------------------- what preemption promises on every run


def the_cache_is_relieved_and_only_where_it_has_to_be(r):
    """Evictions happen exactly where live KV exceeds M_max after departures; then it does no more, and one stays.

    So no batch begins with more than M_max: a request alone in flight has at most P + D <= M_max.
    """
    kept = r.live_kv_tokens - r.freed
    np.testing.assert_array_equal(r.evictions > 0, kept > r.config.kv_capacity)
    assert (kept - r.lost <= r.config.kv_capacity).all()
    leaving = np.bincount(r.finish_batch, minlength=r.batches)
    assert (r.in_flight - leaving - r.evictions >= 1)[r.evictions > 0].all()


def evicted_requests_come_before_all_others(r):
    if r.config.on_blocked == "stop":
        assert not r.evicted[r.admissions > 0].any()
    nothing_in_flight = r.in_flight == r.admissions + r.readmissions
    assert (r.readmissions > 0)[nothing_in_flight & (r.evicted + r.readmissions > 0)].all()


# No livelock, with a bound. Call the request in flight that was admitted first the head.
#   - It is never evicted, as the one admitted last goes first and one always stays: once head, it is head till it leaves.
#   - It gets a token at least in every batch. If it decodes it is the first to do so, as prefills are completed in order
#     of admission, and takes its whole block, or B if that is less. If it is in prefill then everyone after it is not
#     prefilled either, nothing decodes, and it takes the whole budget.
#   - So, with g tokens generated when it was last admitted, it is head for at most
#     ceil((P + g) / B) + ceil((D - g) / min(q, B)) batches; as ceil(x + y) <= ceil(x) + ceil(y) <= ceil(x + y) + 1, that is
#     at most ceil(P / B) + ceil(D / min(q, B)) + 1, whatever g is. This is `as_head` below, and as every batch has a head:
#   - the run has at most the sum of these in batches, and never more than the largest of them pass until somebody leaves;
#   - a request that is started into an empty engine before anybody else is head at once, with g = 0, and gets exactly
#     one batch less than the bound.
# With on_blocked="stop", more: evicted requests come back before anybody starts, the one admitted first ahead; so the
# requests that have started and not left are always in order of their starts, first those in flight, then those evicted.
# When all that started no later than x have left, x is head, however often it was evicted.


def nobody_is_held_up_for_ever(r):
    block = min(r.config.decode_block, r.config.token_budget)
    as_head = -(-r.prompt_tokens // r.config.token_budget) + -(-r.response_tokens // block) + 1
    assert r.batches <= as_head.sum()
    assert np.diff(np.unique(r.finish_batch), prepend=-1).max() <= as_head.max()
    empty = (r.in_flight == r.admissions) & (r.admissions > 0)
    for i in np.flatnonzero(empty):
        first = np.flatnonzero(r.start_batch == i)
        assert (r.finish_batch[first] - i + 1 == as_head[first] - 1).any()
    if r.config.on_blocked == "stop":
        for x in range(len(r.requests)):
            no_later = r.start_batch <= r.start_batch[x]
            no_later[x] = False
            head_from = max(r.start_batch[x], r.finish_batch[no_later].max(initial=-1) + 1)
            assert r.finish_batch[x] - head_from + 1 <= as_head[x]


PROMISES = [
    the_cache_is_relieved_and_only_where_it_has_to_be,
    evicted_requests_come_before_all_others,
    nobody_is_held_up_for_ever,
]


@pytest.mark.parametrize("kind", BUILT_IN)
def test_promises_of_preemption_on_drawn_cases(kind):
    evicted = []

    @settings(SMALL, max_examples=200)
    @given(case=pressed_cases() | cases(on_overflow="preempt"), policy=policy_of(kind))
    def hold(case, policy):
        record = Record(case[0], policy, case[1])
        for promise in PROMISES:
            promise(record)
        evicted.append(record.total_evictions)

    hold()
    assert np.count_nonzero(evicted) > 50 and max(evicted) > 10


@pytest.mark.parametrize("on_blocked", ["stop", "skip"])
@pytest.mark.parametrize("projection", ["prompt", "chunk"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_promises_of_preemption_where_the_cache_holds_one_request(kind, projection, on_blocked):
    """A load past saturation and a cache that the largest request fills: whoever else is in flight gets in its way."""
    requests = flipped(rate=40, seed=3)
    largest = int((requests.prompt_tokens + requests.response_tokens).max())
    config = qba.EngineConfig(
        kv_capacity=largest, kv_safety=1.0, kv_projection=projection, on_blocked=on_blocked, on_overflow="preempt"
    )
    record = Record(requests, kind(), config)
    assert record.total_evictions > len(requests) / 4
    for invariant in INVARIANTS + PROMISES:
        invariant(record)


@settings(SMALL, max_examples=100)
@given(case=cases(on_overflow="preempt") | pressed_cases(), policy=policies())
def test_nothing_is_preempted_where_counting_finds_no_overflow(case, policy):
    requests, config = case
    count = dataclasses.replace(config, on_overflow="count")
    (run, batches), (counted, counted_batches) = (
        qba.simulate(requests, policy, c, record=True) for c in (config, count)
    )
    if counted.kv_overflows == 0:
        xr.testing.assert_equal(run, counted)
        xr.testing.assert_equal(batches, counted_batches)
    else:  # until the first eviction both are the same, and so is the overflow before it
        assert run.kv_overflows > 0
