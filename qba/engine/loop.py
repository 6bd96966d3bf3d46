"""The compiled event loop: from batch boundary to batch boundary (paper, section II-A).

Requests are numbered in order of arrival. What waits in a predicted class is a stretch of that class' numbers: from its
head, the oldest not yet started, to the last that has arrived; so a queue is one counter. A batch leaves at most one
prefill unfinished, because only running out of budget stops one and then nothing else is admitted; it is kept in two
scalars. Decoding requests stand in order of prefill completion in two compact arrays.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from qba.config import KV_PROJECTIONS
from qba.engine import quantile
from qba.engine.cache import compiled
from qba.engine.dispatch import pick, prefilled, started
from qba.policies import COUNTER, DEBT, PROMOTED, SHORT, STATE_SIZE

BATCH_LOG = np.dtype(
    [
        ("time_s", "f8"),
        ("duration_s", "f8"),
        ("decode_tokens", "i8"),
        ("prefill_tokens", "i8"),
        ("live_kv_tokens", "i8"),
        ("waiting_short", "i8"),
        ("waiting_long", "i8"),
        ("threshold_s", "f8"),
        ("counter", "i8"),
        ("debt", "i8"),
        ("admissions", "i8"),
        ("promotions", "i8"),
    ]
)


class Engine(NamedTuple):
    """`qba.EngineConfig` as the loop takes it; ``kv_projection`` is the place of its name in `KV_PROJECTIONS`."""

    token_budget: int
    decode_block: int
    kv_capacity: int
    kv_safe_tokens: float
    batch_overhead_s: float
    token_time_s: float
    knee_tokens: float
    kv_projection: int
    decode_partial: bool


class Totals(NamedTuple):
    """What the loop counts over a run."""

    batches: int
    tokens: int
    busy_s: float
    peak_kv_tokens: int
    kv_overflows: int
    blocked_admissions: int
    promoted: int
    aged: int


PROMPT, CHUNK, RESERVE_ALL = (KV_PROJECTIONS.index(name) for name in ("prompt", "chunk", "reserve-all"))


@numba.njit(nogil=True)
def decode(remaining, decoding, block, budget, partial_block):
    """Give the decoding requests their blocks in order; return (requests served, budget left, requests finished)."""
    served = finished = 0
    while served < decoding and budget > 0:
        take = min(block, remaining[served])
        if take > budget:
            if not partial_block:
                break
            take = budget
        remaining[served] -= take
        budget -= take
        finished += remaining[served] == 0
        served += 1
    return served, budget, finished


@numba.njit(nogil=True)
def depart(ids, remaining, decoding, t, finish, prompt, response):
    """Take the finished requests out of the decoding arrays, in place and in order; return the KV tokens freed."""
    kept = freed = 0
    for i in range(decoding):
        r = ids[i]
        if remaining[i] == 0:
            finish[r] = t
            freed += prompt[r] + response[r]
        else:
            ids[kept] = r
            remaining[kept] = remaining[i]
            kept += 1
    return freed


@numba.njit(nogil=True)
def projected(kv_projection, live, prompt_left, reserved, budget, prompt, response):
    """KV tokens to compare with the safe limit if a request of these lengths were admitted."""
    if kv_projection == RESERVE_ALL:
        return reserved + prompt + response
    if kv_projection == CHUNK:
        return live + min(prompt, budget)
    if kv_projection == PROMPT:
        return live + prompt
    return live + prompt_left + prompt


@numba.njit(nogil=True)
def count_until(numbers, place, limit):
    """First place at or after ``place`` whose number is at least ``limit``."""
    while place < len(numbers) and numbers[place] < limit:
        place += 1
    return place


@numba.njit(nogil=True)
def head(numbers, place, arrived):
    """The oldest waiting request of a class, or -1."""
    if place < len(numbers) and numbers[place] < arrived:
        return numbers[place]
    return -1


@compiled
def run(
    rule,
    longs_only,
    engine,
    arrival,
    prompt,
    response,
    predicted_long,
    start,
    prefill_end,
    first_token,
    finish,
    promoted,
    log,
):
    """Serve all requests. ``longs_only``: whether only predicted-long requests' waits set the aging threshold.

    Fills ``start`` … ``promoted``, shape (n,), and ``log``, shape (batches,), unless that is empty; returns `Totals`.
    """
    n = len(arrival)
    shorts, longs = np.flatnonzero(~predicted_long), np.flatnonzero(predicted_long)
    short_head = long_head = short_tail = long_tail = 0
    state = np.zeros(STATE_SIZE, np.int64)
    aging = not math.isnan(rule.aging_quantile)
    low, high = [0.0 for _ in range(0)], [0.0 for _ in range(0)]
    theta = np.nan

    # Every request in flight holds at least one token, and none is admitted past the safe limit.
    most = min(n, int(engine.kv_safe_tokens)) + 1
    ids, remaining = np.empty(most, np.int64), np.empty(most, np.int64)
    decoding = fresh = 0  # requests that decode; the first of them that has no token yet
    partial, prompt_left = -1, 0  # the prefill under way and its prompt tokens still to come
    arrived = begun = done = 0
    live = reserved = 0  # KV tokens of the requests in flight: now, and once they end
    t = arrival[0]
    batches = tokens = peak = overflows = blocked = promotions = aged_starts = 0
    busy = 0.0

    while done < n:
        if decoding == 0 and partial < 0 and begun == arrived:
            t = max(t, arrival[arrived])
        while arrived < n and arrival[arrived] <= t:
            arrived += 1
        if aging:
            theta = quantile.value(low, high, rule.aging_quantile)

        # Decodes first, then the prefill under way.
        served, left, finished = decode(
            remaining, decoding, engine.decode_block, engine.token_budget, engine.decode_partial
        )
        decoded = engine.token_budget - left
        joining = decoding  # where the decoding arrays end once this batch's completed prefills have joined
        if partial >= 0:
            take = min(prompt_left, left)
            prompt_left -= take
            left -= take
            if prompt_left == 0:
                ids[joining] = partial
                joining += 1
                partial = -1
        live += engine.token_budget - left

        # Admissions, in the policy's order.
        short_before, long_before, promotions_before = short_head, long_head, promotions
        may_promote, passed_over = True, -1
        while left > 0 and begun < arrived:
            short, long = head(shorts, short_head, arrived), head(longs, long_head, arrived)
            aged = long >= 0 and t - arrival[long] > theta
            choice = pick(rule, state, short, long, aged and may_promote)
            r = short if choice == SHORT else long
            if r < 0:
                raise ValueError("its pick chose a class of which no request waits")
            kv = projected(engine.kv_projection, live, prompt_left, reserved, left, prompt[r], response[r])
            if kv > engine.kv_safe_tokens:
                blocked += r != passed_over
                if choice == PROMOTED and short >= 0:
                    may_promote, passed_over = False, r
                    continue
                break
            if choice == SHORT:
                short_head += 1
            else:
                long_head += 1
                aged_starts += aged
                promotions += choice == PROMOTED
            start[r], promoted[r] = t, choice == PROMOTED
            reserved += prompt[r] + response[r]
            started(rule, state, choice)
            begun += 1
            take = min(prompt[r], left)
            left -= take
            live += take
            if take == prompt[r]:
                ids[joining] = r
                joining += 1
            else:
                partial, prompt_left = r, prompt[r] - take

        load = engine.token_budget - left
        duration = engine.batch_overhead_s + engine.token_time_s * max(0.0, load - engine.knee_tokens)
        peak = max(peak, live)
        overflows += live > engine.kv_capacity
        if len(log):
            short_tail, long_tail = count_until(shorts, short_tail, arrived), count_until(longs, long_tail, arrived)
            entry = log[batches]
            entry.time_s, entry.duration_s, entry.threshold_s = t, duration, theta
            entry.decode_tokens, entry.prefill_tokens, entry.live_kv_tokens = decoded, load - decoded, live
            entry.waiting_short, entry.waiting_long = short_tail - short_before, long_tail - long_before
            entry.admissions = short_head - short_before + long_head - long_before
            entry.promotions = promotions - promotions_before
        t += duration
        busy += duration
        tokens += load

        # What this batch completed, at its end.
        for i in range(fresh, served):
            first_token[ids[i]] = t
        for i in range(decoding, joining):
            r = ids[i]
            remaining[i] = response[r]
            prefill_end[r] = t
            prefilled(rule, state, predicted_long[r], promoted[r])
        if finished:
            freed = depart(ids, remaining, joining, t, finish, prompt, response)
            live -= freed
            reserved -= freed
        fresh = max(fresh, served) - finished
        decoding = joining - finished
        done += finished
        if aging:
            for i in range(short_before, short_head if not longs_only else short_before):
                quantile.add(low, high, rule.aging_quantile, start[shorts[i]] - arrival[shorts[i]])
            for i in range(long_before, long_head):
                quantile.add(low, high, rule.aging_quantile, start[longs[i]] - arrival[longs[i]])
        if len(log):
            log[batches].counter, log[batches].debt = state[COUNTER], state[DEBT]
        batches += 1
    return Totals(batches, tokens, busy, peak, overflows, blocked, promotions, aged_starts)
