"""Rival schedulers: each on an example worked by hand, DRR beside its textbook, WRR beside QBA."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SMALL, flipped, table
from test_invariants import (
    SINGLE_SERVER,
    single_server_loads,
)
from twin import both, unit_engine

import qba
from qba.rivals import (
    DRR,
    LTR,
    SPRPT,
    SSJF,
    VTC,
    WRR,
    Boost,
    BoostByLength,
    NudgeM,
    SJFAging,
    SkipJoinMLFQ,
    VLLMPriority,
    VLLMPriorityAging,
)

# ------------------------------------------------------------------------------------------- examples worked by hand
#
# With one token a batch and one second a batch the engine is one server: a request holds it for prompt + response
# seconds, and the next begins when it leaves. A row is (arrival, prompt, response, class).


def order(policy, rows, **columns):
    """Numbers of the requests in the order in which that server begins them."""
    requests = table(rows).replace(**columns)
    run, _ = both(requests, policy, unit_engine(token_budget=1, decode_block=1))
    return np.argsort(run.start_s.values).tolist()


def test_shortest_predicted_first():
    # 1 has the smallest response, though the longest prompt; it leaves at 6. Then 3, which has come since, 2 and 0.
    rows = [(0, 1, 3, "S"), (0, 5, 1, "S"), (0, 1, 2, "S"), (1, 1, 1, "S")]
    assert order(SSJF(), rows) == [1, 3, 2, 0]
    # By the whole, 2 (3 tokens) is first and leaves at 3; then 3 (2 tokens), 0 (4) and 1 (6).
    assert order(SPRPT(), rows) == [2, 3, 0, 1]
    # What counts is the prediction.
    assert order(SSJF(), rows, predicted_tokens=[1, 2, 3, 4]) == [0, 1, 2, 3]


def test_linear_aging():
    # 0 is alone at time 0 and leaves at 4, when all others have come: keys 1 -> 5 + 2*0 = 5, 2 -> 2 + 2*1 = 4,
    # 3 -> 2 + 2*2 = 6, 4 -> 1 + 2*3 = 7.
    rows = [(0, 1, 3, "S"), (0, 1, 5, "S"), (1, 1, 2, "S"), (2, 1, 2, "S"), (3, 1, 1, "S")]
    assert order(SJFAging(weight=2), rows) == [0, 2, 1, 3, 4]
    assert order(SJFAging(weight=0), rows) == order(SSJF(), rows) == [0, 4, 2, 3, 1]


def test_learning_to_rank_lets_the_starved_go_first():
    # 0 takes batches 0 and 1. At 2, requests 1 and 2 have been left out of two batches and 3 of one: none is starved,
    # and 3 is the shortest. At 4, requests 1 and 2 have been left out of four: the oldest is 1,
    # and goes before the shorter 2.
    rows = [(0, 1, 1, "S"), (0, 1, 5, "S"), (0, 1, 2, "S"), (1, 1, 1, "S")]
    assert order(LTR(starvation=3), rows) == [0, 3, 1, 2]
    assert order(LTR(), rows) == [0, 3, 2, 1]
    # Left out of exactly two batches is enough for starvation=2.
    assert order(LTR(starvation=2), rows) == [0, 1, 2, 3]


def test_skip_join_mlfq():
    # Quanta 2, 4, 8 s and a second for a prompt token: prompts 5, 3, 2, 1 join levels 2, 1, 0, 0. 2 is the oldest in
    # level 0 and leaves at 8, 3 at 10, 1 at 14.
    rows = [(0, 5, 1, "S"), (0, 3, 1, "S"), (0, 2, 6, "S"), (1, 1, 1, "S")]
    levels = {"base_s": 2, "ratio": 2, "prompt_token_s": 1}
    assert order(SkipJoinMLFQ(**levels, starvation_s=20), rows) == [2, 3, 1, 0]
    # At 8, request 0 has waited for 8 s and goes first; at 14 so has 1.
    assert order(SkipJoinMLFQ(**levels, starvation_s=8), rows) == [2, 0, 1, 3]


def test_virtual_token_counter():
    # Clients A = 0, B = 1, C = 2; weights 1 and 2. At 0 the counters are equal, and 0 is older: A = 2, and 4 with its
    # response token; it leaves at 3. B = 0 is smaller: 2 goes, B = 1 + 2*3 = 7, until 7. A = 4: 1 goes, A = 5 + 2 = 7,
    # until 9. C came at 8, when only B waited, and is lifted to 7. At 9, B and C have 7 and 3 is older: B = 10. Then
    # C's two. Without the lift C, with 0 and after that 3, would have gone before 3.
    rows = [(0, 2, 1, "S"), (0, 1, 1, "S"), (0, 1, 3, "S"), (0, 1, 1, "S"), (8, 1, 1, "S"), (8, 1, 1, "S")]
    assert order(VTC(), rows, client=[0, 0, 1, 1, 2, 2]) == [0, 2, 1, 3, 4, 5]
    # 1, of C, comes at 1 when nobody waits, and is lifted to the 3 of A, which last left the queue. A = 5 at 4, so 1
    # goes and C = 6; then A's 3. Without the lift C = 3 would have let 2 go before it.
    rows_of_two = [(0, 3, 1, "S"), (1, 1, 1, "S"), (1, 1, 1, "S"), (1, 1, 1, "S")]
    assert order(VTC(), rows_of_two, client=[0, 2, 2, 0]) == [0, 1, 3, 2]
    # Prompts alone: A = 2, so B's two (1 each) and then A's; C is lifted to A's 2 at 8 and comes after 1, which is
    # older.
    assert order(VTC(response_weight=0), rows, client=[0, 0, 1, 1, 2, 2]) == [0, 2, 3, 1, 4, 5]


def test_boost_of_two_classes():
    # 0 leaves at 8, when all have come: keys 1 and 2 (long, as they came) 1 and 2, 3 -> 3 - 3 = 0, 4 -> 5 - 3 = 2.
    # Of the equal ones the older goes first.
    rows = [(0, 1, 7, "S"), (1, 1, 1, "L"), (2, 1, 1, "L"), (3, 1, 1, "S"), (5, 1, 1, "S")]
    assert order(Boost(boost_short=3, boost_long=0), rows) == [0, 3, 1, 2, 4]
    assert order(Boost(boost_short=1, boost_long=1), rows) == [0, 1, 2, 3, 4]


def test_boost_by_length():
    # gamma = 0.1/s and a second a token: b(2) = 10 ln(1 / (1 - e^-0.2)) = 17.08, b(8) = 10 ln(1 / (1 - e^-0.8)) = 5.97.
    # Keys 1 -> 1 - 5.97 = -4.97, 2 -> 5 - 17.08 = -12.08, 3 -> 13 - 17.08 = -4.08.
    rows = [(0, 1, 14, "S"), (1, 1, 7, "S"), (5, 1, 1, "S"), (13, 1, 1, "S")]
    assert order(BoostByLength(decay_rate=0.1, token_s=1), rows) == [0, 2, 1, 3]
    # Had 3 come a second sooner, its key would be -5.08 and it would pass 1.
    assert order(BoostByLength(decay_rate=0.1, token_s=1), [*rows[:3], (12, 1, 1, "S")]) == [0, 2, 3, 1]


def test_nudge_m():
    # 0 leaves at 10. The last two before 3 are 1 and 2: it passes both. The last two before 4 are 2 and 3: it passes 2.
    rows = [(0, 1, 9, "S"), (1, 1, 1, "L"), (2, 1, 1, "L"), (3, 1, 1, "S"), (4, 1, 1, "S")]
    assert order(NudgeM(m=2), rows) == [0, 3, 1, 4, 2]
    assert order(NudgeM(m=0), rows) == [0, 1, 2, 3, 4]
    assert order(NudgeM(m=9), rows) == [0, 3, 4, 1, 2]


def test_weighted_round_robin():
    # Two shorts, a long; one short, and as no other waits the longs.
    rows = [(0, 1, 1, name) for name in "LLSSSL"]
    assert order(WRR(k=2), rows) == [2, 3, 0, 4, 1, 5]
    assert order(WRR(k=1), rows) == [2, 0, 3, 1, 4, 5]


def test_deficit_round_robin():
    # Shorts of 3 tokens, longs of 6, quanta of 4. Visits: shorts 4 -> 0 goes, 1 left; longs 4; shorts 5 -> 1 goes, 2
    # left; longs 8 -> 4 goes, 2 left; shorts 6 -> 2 and 3 go, and nobody waits; longs 6 -> 5.
    rows = [(0, 1, 2, "S")] * 4 + [(0, 1, 5, "L")] * 2
    assert order(DRR(quantum_short=4, quantum_long=4), rows) == [0, 1, 4, 2, 3, 5]
    # Quanta of 6: shorts 6 -> 0 and 1; longs 6 -> 4; and once more.
    assert order(DRR(quantum_short=6, quantum_long=6), rows) == [0, 1, 4, 2, 3, 5]
    # A quantum of 1 for the longs: they need six visits, and shorts of three tokens in quanta of 3 go one a visit.
    assert order(DRR(quantum_short=3, quantum_long=1), rows) == [0, 1, 2, 3, 4, 5]


@settings(SMALL, max_examples=60)
@given(requests=single_server_loads(), quanta=st.tuples(st.integers(1, 15), st.integers(1, 15)))
def test_deficit_round_robin_is_its_textbooks(requests, quanta):
    together = requests.replace(arrival_s=np.zeros(len(requests)), predicted_tokens=requests.response_tokens)
    sizes = (requests.prompt_tokens + requests.response_tokens).tolist()
    queues = [np.flatnonzero(requests.predicted_long == long).tolist() for long in (False, True)]
    deficits, expected = [0, 0], []
    while queues[0] or queues[1]:
        for q in (0, 1):
            if queues[q]:
                deficits[q] += quanta[q]
            while queues[q] and sizes[queues[q][0]] <= deficits[q]:
                deficits[q] -= sizes[queues[q][0]]
                expected.append(queues[q].pop(0))
            if not queues[q]:
                deficits[q] = 0
    run = qba.simulate(together, DRR(*quanta), qba.EngineConfig(**SINGLE_SERVER))
    assert np.argsort(run.start_s.values).tolist() == expected


def test_vllm_priority_with_and_without_credit():
    # 0 leaves at 15. Keys with a credit of 0.1 a second: 1 -> 1 + 0.1, 2 -> 0.5, 3 -> 1.2.
    rows = [(0, 1, 14, "S"), (1, 1, 1, "L"), (5, 1, 1, "S"), (12, 1, 1, "S")]
    assert order(VLLMPriority(), rows) == [0, 2, 3, 1]
    assert order(VLLMPriorityAging(), rows) == [0, 2, 1, 3]
    assert order(VLLMPriority(priority_short=1, priority_long=0), rows) == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------ what is the same


def test_some_are_other_policies():
    requests = flipped(rate=40, seed=3)
    pairs = [
        (VLLMPriority(), qba.PSF()), (VLLMPriorityAging(credit=1e9), qba.FCFS()), (NudgeM(m=10**6), qba.PSF()),
        (SJFAging(weight=1e12), qba.FCFS()), (VTC(), qba.FCFS()), (SJFAging(weight=0), SSJF()),
    ]  # fmt: skip
    for rival, paper in pairs:
        one, other = (qba.simulate(requests, policy) for policy in (rival, paper))
        np.testing.assert_array_equal(one.start_s, other.start_s, err_msg=rival.name)


@settings(SMALL, max_examples=60)
@given(requests=single_server_loads(), k=st.integers(1, 4))
def test_the_quota_without_its_aging_gate_is_weighted_round_robin_while_both_classes_wait(requests, k):
    # Equal for sure: one server, so that a prefill has ended before the next choice is made; everyone there from the
    # beginning, so that no long is let in for want of a short before the shorts are through; and a quantile of nearly
    # 0, so that a long is aged once it has waited longer than the very first request, which did not wait.
    together = requests.replace(arrival_s=np.zeros(len(requests)))
    config = qba.EngineConfig(**SINGLE_SERVER)
    gateless = qba.QBA(k, aging_quantile=1e-12, promotion_clears="start")
    one, other = (qba.simulate(together, policy, config) for policy in (WRR(k), gateless))
    np.testing.assert_array_equal(one.start_s, other.start_s)


def test_where_the_quota_and_weighted_round_robin_part():
    # A long that is let in for want of a short starts WRR's count anew, while QBA's goes on. 0 holds the server until
    # 2: a short for either. 1, a long, is alone then, until 4. With k = 2, WRR lets in both shorts that have come
    # before the second long; QBA lets in one.
    rows = [(0, 1, 1, "S"), (1, 1, 1, "L"), (3, 1, 1, "S"), (3, 1, 1, "S"), (3, 1, 1, "L")]
    assert order(WRR(k=2), rows) == [0, 1, 2, 3, 4]
    assert order(qba.QBA(2, aging_quantile=1e-12, promotion_clears="start"), rows) == [0, 1, 2, 4, 3]


def test_the_quota_and_weighted_round_robin_come_close_where_shorts_are_fewer_than_the_quota_allows():
    # At 32/s 5.67 shorts come for a long. With k = 8 their mean waits differ by 4 % on these replications, with k = 3
    # by half.
    policies = {k: (WRR(k), qba.QBA(k, promotion_clears="start")) for k in (3, 8)}
    runs = {
        k: [
            np.mean([qba.simulate(qba.synthetic(32, seed), policy).wait_s.mean() for seed in range(10)])
            for policy in both
        ]
        for k, both in policies.items()
    }
    assert abs(runs[8][0] / runs[8][1] - 1) < 0.1 and runs[3][0] / runs[3][1] > 1.3
