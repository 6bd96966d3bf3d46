"""What must hold on every run, whatever the policy and options: checked on `run` and `batches` alone.

Every built-in policy is covered through `BUILT_IN`, each check by drawn cases and by a larger heavy load. Token counts
and times are compared exactly; only the threshold, computed otherwise here, and two sums of many products, Little's law
and the busy time, have a tolerance.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from record import Record
from strategies import (
    AMPLE_KV,
    ENGINE_OPTIONS,
    KV_PROJECTIONS,
    SMALL,
    cases,
    flipped,
    policies,
    policy_of,
    pressed_cases,
)

import qba
from qba.policies import BUILT_IN

# ------------------------------------------------------------------------------------------ the invariants, one each


def no_request_is_lost_or_served_twice(r):
    assert r.tokens == r.batch_tokens.sum()
    assert r.decode_tokens.sum() == r.response_tokens.sum()
    assert r.prefill_tokens.sum() == r.prompt_tokens.sum() + r.lost.sum()  # what is evicted is prefilled again
    assert r.total_evictions == r.evictions.sum() == r.readmissions.sum()
    assert r.config.on_overflow == "preempt" or r.total_evictions == 0
    assert (r.evicted >= 0).all()
    assert (r.in_flight >= 1).all()
    assert r.batches == len(r.time_s)
    assert r.admissions.sum() == len(r.requests)
    np.testing.assert_array_equal(np.bincount(r.start_batch, minlength=r.batches), r.admissions)
    assert (r.arrival_s <= r.start_s).all()
    # A prompt needs so many batches at least, a response so many at least.
    chunks, blocks = -(-r.prompt_tokens // r.config.token_budget), -(-r.response_tokens // r.config.decode_block)
    assert (r.prefill_batch - r.start_batch + 1 >= chunks).all()
    assert (r.finish_batch - r.prefill_batch >= blocks).all()
    assert (r.prefill_end_s < r.first_token_s).all() and (r.first_token_s <= r.finish_s).all()
    # No more tokens are prefilled than were let in or lost before, and those of a completed prefill all were.
    served, lost = np.cumsum(r.prefill_tokens), np.cumsum(r.lost) - r.lost
    for i in range(r.batches):
        assert r.prompt_tokens[r.prefill_batch <= i].sum() <= served[i]
        assert served[i] <= r.prompt_tokens[r.start_batch <= i].sum() + lost[i]


def the_token_budget_is_kept(r):
    assert (r.decode_tokens >= 0).all() and (r.prefill_tokens >= 0).all()
    assert (r.batch_tokens <= r.config.token_budget).all()


def live_kv_is_what_was_served_and_not_yet_freed(r):
    # `lost` is what is missing in this account: nothing without an eviction, and a token at least with each.
    assert r.live_kv_tokens[0] == r.batch_tokens[0]
    assert (r.lost >= r.evictions).all()
    assert not r.lost[r.evictions == 0].any()
    assert r.peak_kv_tokens == r.live_kv_tokens.max()
    assert r.kv_overflows == (r.live_kv_tokens > r.config.kv_capacity).sum()


def at_most_one_prefill_is_unfinished(r):
    # Only an exhausted budget leaves a prefill unfinished, and nobody is let in before it is finished. Of the started
    # requests that are not prefilled, all beyond the number that wait evicted are in flight.
    batch = np.arange(r.batches)
    unfinished = r.started & (r.prefill_batch[:, None] > batch)
    assert (unfinished.sum(axis=0) <= 1 + r.evicted).all()
    assert (r.batch_tokens[unfinished.sum(axis=0) > r.evicted] == r.config.token_budget).all()
    earlier = unfinished & (r.start_batch[:, None] < batch)
    assert not r.admissions[earlier.sum(axis=0) > r.evicted].any()


def no_admission_passes_the_safe_limit(r):
    # Inside a boundary the projection only grows, so it is enough to look at it after the last admission. One evicted
    # request that finds nothing in flight is let in whatever its size.
    safe = r.config.kv_safety * r.config.kv_capacity
    came_back_alone = (r.in_flight == 1) & (r.readmissions == 1)
    ruled = (r.admissions + r.readmissions > 0) & ~came_back_alone
    exact = (r.evicted == 0) | (r.batch_tokens < r.config.token_budget)
    assert (r.admitted_kv[ruled & exact] <= safe).all()
    assert (r.live_kv_tokens[ruled] <= safe).all()
    if r.config.kv_projection == "reserve-all":  # then nothing that comes later can pass it either
        assert r.peak_kv_tokens <= safe
        assert r.kv_overflows == r.evictions.sum() == 0


def decodes_come_before_prefills(r):
    q, budget = r.config.decode_block, r.config.token_budget
    last_block = (r.response_tokens - 1) % q + 1  # where all blocks are whole
    for i in np.flatnonzero(r.known_to_decode):
        decoding = (r.prefill_batch < i) & (r.finish_batch >= i)
        finishing = decoding & (r.finish_batch == i)
        going_on = decoding.sum() - finishing.sum()
        if not r.config.decode_partial:
            # Those that finish got their last block; of the others some got q tokens, and the rest nothing, which
            # only happens where less than q is left.
            blocks, rest = divmod(r.decode_tokens[i] - last_block[finishing].sum(), q)
            assert rest == 0 and 0 <= blocks <= going_on
            assert blocks == going_on or budget - r.decode_tokens[i] < q
        elif r.prefill_tokens[i] > 0 or r.batch_tokens[i] < budget:
            # Every decoding request got its full block: all that do not finish in this batch got q tokens, those that
            # do finish at least one and at most q.
            assert finishing.sum() <= r.decode_tokens[i] - q * going_on <= q * finishing.sum()


def prefills_end_and_responses_begin_in_the_order_of_starts(r):
    # Evicted requests come back before anybody starts, the one that started first ahead: the order of starts is kept.
    # Where the one that comes back can be skipped, it is lost.
    if r.config.on_overflow == "preempt" and r.config.on_blocked == "skip":
        return
    for earlier, later in [(r.start_s, r.prefill_end_s), (r.prefill_end_s, r.first_token_s)]:
        order = np.lexsort((later, earlier))  # any order may hold among those of one batch
        assert (np.diff(later[order]) >= 0).all()


def a_predicted_class_is_served_first_come_first_served(r):
    """Except that a request that KV refuses may be skipped, but never by a promotion.

    Who starts before an older request of its class does so at a boundary at which the older one could not be admitted:
    not with what had been let in there, at most all but the younger requests of their class.
    """
    for label in (False, True):
        in_class = r.predicted_long == label
        members = np.flatnonzero(in_class)  # in order of arrival
        for place, x in enumerate(members):
            skipped = members[:place][r.start_batch[members[:place]] > r.start_batch[x]]
            assert r.config.on_blocked == "skip" or not len(skipped)
            assert not (r.promoted[x] and len(skipped))
            not_yet_in = in_class & (np.arange(len(r.requests)) >= x)
            for y in skipped:
                assert r.kv_with(r.start_batch[x], y, without=not_yet_in) > r.config.kv_safety * r.config.kv_capacity


def the_clock_goes_forward_and_stops_only_when_nothing_is_there(r):
    assert (r.batch_tokens >= 1).all()
    c = r.config
    law = [c.batch_overhead_s + c.token_time_s * max(0, b - c.knee_tokens) for b in r.batch_tokens]
    np.testing.assert_array_equal(r.duration_s, law)
    assert r.time_s[0] == r.arrival_s[0]
    assert (np.diff(r.time_s) > 0).all()
    assert (r.time_s[1:] >= r.end_s[:-1]).all()
    for i in np.flatnonzero(r.time_s[1:] > r.end_s[:-1]):
        there = r.arrival_s <= r.end_s[i]
        assert (r.finish_batch[there] <= i).all()  # all who had come had left
        assert r.time_s[i + 1] == r.arrival_s[~there].min()  # and work goes on with the very next arrival
    assert r.makespan_s == r.end_s[-1] - r.arrival_s[0]
    assert math.isclose(r.busy_s, r.duration_s.sum(), rel_tol=1e-12)


def budget_is_left_over_only_where_nobody_can_be_admitted(r):
    safe, skip = r.config.kv_safety * r.config.kv_capacity, r.config.on_blocked == "skip"
    refused = 0
    for i in np.flatnonzero(r.batch_tokens < r.config.token_budget):
        waiting = r.waiting_after(i)
        if r.evicted[i]:
            # The first of them was refused, and skipped perhaps. Which it is and what it had generated is not recorded:
            # it is no larger than the largest can be.
            left = r.config.token_budget - r.batch_tokens[i]
            largest = (r.prompt_tokens + r.response_tokens - 1)[r.started[:, i]].max()
            chunk = min(largest, left) if r.config.kv_projection == "chunk" else largest
            assert r.live_kv_tokens[i] + chunk > safe
        if skip:
            assert all(r.kv_with(i, x) > safe for x in waiting)
            refused += r.evicted[i] + len(waiting)
        elif r.evicted[i]:
            refused += 1
        elif len(waiting):
            # One of the two heads of the queue was refused.
            heads = np.concatenate([waiting[r.predicted_long[waiting] == label][:1] for label in (False, True)])
            assert max(r.kv_with(i, x) for x in heads) > safe
            refused += 1
    assert r.blocked_admissions >= refused


def littles_law_holds(r):
    """The time integral of the number waiting, added up from the recorded queue, is the sum of the waits.

    Between boundary i and the next, those left waiting after the admissions wait all the time, and who arrives in
    between waits from then on.
    """
    nxt = np.append(r.time_s[1:], r.end_s[-1])
    left = r.waiting_short + r.waiting_long - r.admissions
    integral = (left * (nxt - r.time_s)).sum()
    joins = np.searchsorted(r.time_s, r.arrival_s)  # the boundary at which each request joins the queue
    integral += (r.time_s[joins] - r.arrival_s).sum()
    assert math.isclose(integral, (r.start_s - r.arrival_s).sum(), rel_tol=1e-9, abs_tol=1e-12)
    np.testing.assert_array_equal(r.wait_s, r.start_s - r.arrival_s)


def promotions_are_of_aged_predicted_long_requests(r):
    aging = not np.isnan(r.threshold_s).any()
    assert aging or np.isnan(r.threshold_s).all()
    aged = r.predicted_long & (r.wait_s > r.threshold_s[r.start_batch])  # all False where θ is NaN
    assert (aged | ~r.promoted).all()
    np.testing.assert_array_equal(np.bincount(r.start_batch[r.promoted], minlength=r.batches), r.promotions)
    longs = r.predicted_long.sum()
    expected = [r.promoted.sum() / longs, aged.sum() / longs] if aging and longs else [np.nan, np.nan]
    np.testing.assert_array_equal([r.promoted_fraction, r.aged_fraction], expected)


def the_threshold_is_a_quantile_of_the_waits_it_looks_at(r):
    if np.isnan(r.threshold_s).all():
        return
    counted = r.predicted_long | (r.policy.aging_classes == "all")
    # In order of start; inside a batch the promoted, then the short, then the long, each in order of arrival.
    order = np.lexsort((r.predicted_long, ~r.promoted, r.start_batch))
    order = order[counted[order]]
    earlier = np.searchsorted(r.start_batch[order], np.arange(r.batches))  # starts before each batch
    for i in range(r.batches):
        if r.policy.aging_sample == "queue":
            sample = r.time_s[i] - r.arrival_s[counted & (r.arrival_s <= r.time_s[i]) & (r.start_batch >= i)]
        else:
            sample = r.wait_s[order[: earlier[i]][-(r.policy.aging_window or len(order)) :]]
        expected = np.quantile(sample, r.policy.aging_quantile) if len(sample) else np.inf
        assert math.isclose(r.threshold_s[i], expected, rel_tol=1e-9, abs_tol=1e-12)


INVARIANTS = [
    no_request_is_lost_or_served_twice,
    the_token_budget_is_kept,
    live_kv_is_what_was_served_and_not_yet_freed,
    at_most_one_prefill_is_unfinished,
    no_admission_passes_the_safe_limit,
    decodes_come_before_prefills,
    prefills_end_and_responses_begin_in_the_order_of_starts,
    a_predicted_class_is_served_first_come_first_served,
    the_clock_goes_forward_and_stops_only_when_nothing_is_there,
    budget_is_left_over_only_where_nobody_can_be_admitted,
    littles_law_holds,
    promotions_are_of_aged_predicted_long_requests,
    the_threshold_is_a_quantile_of_the_waits_it_looks_at,
]


@pytest.mark.parametrize("kind", BUILT_IN)
@pytest.mark.parametrize("drawn", [cases, pressed_cases])
def test_invariants_on_drawn_cases(drawn, kind):
    @settings(SMALL, max_examples=150)
    @given(case=drawn(), policy=policy_of(kind))
    def hold(case, policy):
        record = Record(case[0], policy, case[1])
        for invariant in INVARIANTS:
            invariant(record)

    hold()


@pytest.fixture(scope="module")
def heavy():
    """Records of a load past saturation with wrong labels: for each policy the default engine and each other option."""
    requests = flipped(rate=40, seed=3)
    return {
        kind: [Record(requests, kind(), qba.EngineConfig(**options)) for options in ENGINE_OPTIONS] for kind in BUILT_IN
    }


@pytest.mark.parametrize("invariant", INVARIANTS)
@pytest.mark.parametrize("kind", BUILT_IN)
def test_invariants_on_a_heavy_load(kind, invariant, heavy):
    for record in heavy[kind]:
        assert record.blocked_admissions > 0
        assert (record.total_evictions > 0) == (record.config.on_overflow == "preempt")
        invariant(record)


# --------------------------------------------------------------------------------- two KV projections that are the same
#
# A prefill is left unfinished only by a batch that uses up its budget; so nobody is let in after it in that batch, and
# in later ones it takes all that the decodes leave until it is finished. At most one prefill is therefore unfinished,
# and none at the moment in which a candidate is looked at: what is left of the prompts that were let in is nothing,
# whether it is added ("reserve-prompt") or not ("prompt").


@settings(SMALL, max_examples=100)
@given(case=cases(), policy=policies())
def test_reserving_what_is_left_of_prompts_changes_nothing(case, policy):
    requests, config = case
    pair = [dataclasses.replace(config, kv_projection=value) for value in ("reserve-prompt", "prompt")]
    (run, batches), (other_run, other_batches) = (qba.simulate(requests, policy, c, record=True) for c in pair)
    xr.testing.assert_equal(run, other_run)
    xr.testing.assert_equal(batches, other_batches)


# ---------------------------------------------------------------------------------------------- the conservation law
#
# With B = q = 1 a batch is one token and takes a fixed time T. Decodes come first and continuations next, so a request
# that has started holds the engine for P + D batches in a row: one server, no preemption, service times
# S_i = (P_i + D_i) T, and the next candidate starts at the very boundary at which the one before it leaves.
# The unfinished work V(t) then falls at rate 1 whenever there is any and jumps by S_i at each arrival, whatever the
# order: it is the same function of time for every policy. Request i contributes S_i to it while it waits and a
# triangle while it is served, so
#     integral of V = sum over i of (S_i W_i + S_i^2 / 2),
# and the sum of S_i W_i is the same for every policy, run by run. (A boundary inside a busy period may fall after an
# arrival, which then waits for it under every policy alike.) KV admits anyone when nothing is in flight.


@st.composite
def single_server_loads(draw):
    """Requests whose times are multiples of 1/64 s, so that sums and differences of them are exact."""
    n = draw(st.integers(2, 25))
    column = st.lists(st.integers(1, 6), min_size=n, max_size=n)
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    gaps = draw(st.lists(st.integers(0, 100) | st.just(0), min_size=n, max_size=n))
    return qba.Requests(
        arrival_s=np.cumsum(gaps) / 64,
        prompt_tokens=draw(column),
        response_tokens=draw(column),
        predicted_long=draw(flags),
    )


def work_weighted_wait(requests, policy, config):
    """Sum of S_i W_i in units of one batch time; also asserts that a started request runs to its end."""
    run = qba.simulate(requests, policy, config)
    service = (run["prompt_tokens"] + run["response_tokens"]).values
    np.testing.assert_array_equal(run["finish_s"] - run["start_s"], service * config.batch_overhead_s)
    return (service * run["wait_s"].values).sum()


SINGLE_SERVER = {"token_budget": 1, "decode_block": 1, "batch_overhead_s": 0.125, "kv_capacity": AMPLE_KV}


@settings(SMALL, max_examples=100)
@given(
    requests=single_server_loads(),
    drawn=st.tuples(policy_of(qba.QBA), policy_of(qba.AA)),
    projection=st.sampled_from(KV_PROJECTIONS),
    partial=st.booleans(),
)
def test_conservation_law(requests, drawn, projection, partial):
    config = qba.EngineConfig(**SINGLE_SERVER, kv_projection=projection, decode_partial=partial)
    every = [kind() for kind in BUILT_IN] + [*drawn]
    assert len({work_weighted_wait(requests, policy, config) for policy in every}) == 1


def test_conservation_law_on_a_long_run():
    rng = np.random.default_rng(11)
    n = 2000
    requests = qba.Requests(
        arrival_s=np.cumsum(rng.integers(0, 200, n)) / 64,  # mean 1.55 s for a mean service of 1.44 s: load 0.93
        prompt_tokens=rng.integers(1, 9, n),
        response_tokens=rng.integers(1, 14, n),
    )
    config = qba.EngineConfig(**SINGLE_SERVER)
    sums = [work_weighted_wait(requests, kind(), config) for kind in BUILT_IN]
    assert len(set(sums)) == 1
    waits = [float(qba.simulate(requests, kind(), config)["wait_s"].mean()) for kind in BUILT_IN]
    assert len(set(waits)) == len(waits)  # the policies did serve in different orders
