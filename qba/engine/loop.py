"""The compiled event loop: from batch boundary to batch boundary (paper, section II-A).

A batch leaves at most one prefill unfinished, because only running out of budget stops one and then nothing else is
admitted; the ledger keeps it. Decoding requests stand in order of prefill completion, which is that of admission, in a
compact array. Who was evicted waits on a stack.

Everything is kept in a few structured arrays, and the steps of a batch are built into the loop, because numba counts
references to each array that is handed to a function that is called.
"""

from __future__ import annotations

import math

import numpy as np

from qba.config import KV_PROJECTIONS
from qba.engine import quantile, queues
from qba.engine.aging import HISTORY, QUEUE, WINDOW, of_queue, of_sorted, slide
from qba.engine.cache import built_in, compiled
from qba.engine.dispatch import pick, prefilled, started
from qba.policies import COUNTER, DEBT, LONG, PROMOTED, SHORT, STATE_SIZE

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
        ("evictions", "i8"),
        ("readmissions", "i8"),
    ]
)

LEDGER = np.dtype(
    [
        ("t", "f8"),  # the clock
        ("threshold", "f8"),  # θ
        ("arrived", "i8"),  # requests so far: come, started, gone
        ("begun", "i8"),
        ("done", "i8"),
        ("waiting_long", "i8"),  # of those who wait for a first start, the predicted-long ones
        ("left", "i8"),  # budget left in this batch
        ("decoding", "i8"),  # requests that decode in this batch
        ("joining", "i8"),  # and with those whose prefill it completes
        ("fresh", "i8"),  # the first decoding request that has no token yet
        (
            "partial",
            "i8",
        ),  # the prefill under way or -1, its prompt tokens still to come, its response tokens still to come
        ("prompt_left", "i8"),
        ("partial_rest", "i8"),
        ("live", "i8"),  # KV tokens of the requests in flight: now, and once they end
        ("reserved", "i8"),
        ("evicted", "i8"),  # height of the stack of evicted requests
        ("busy", "f8"),  # totals of the run
        ("batches", "i8"),
        ("tokens", "i8"),
        ("peak_kv_tokens", "i8"),
        ("kv_overflows", "i8"),
        ("blocked_admissions", "i8"),
        ("promoted", "i8"),
        ("aged", "i8"),
        ("evictions", "i8"),
        ("readmissions", "i8"),
    ]
)
"""What the loop counts, in one record; a run's totals are what it holds at the end."""

REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("start", "f8"),  # these four are NaN until they come
        ("prefill_end", "f8"),
        ("first_token", "f8"),
        ("finish", "f8"),
        ("prompt", "i8"),
        ("response", "i8"),
        ("next", "i8"),  # who waits after it in its queue
        ("predicted_long", "?"),
        ("promoted", "?"),
    ],
    align=True,
)
"""A request. They are numbered in order of arrival."""

SHARE = np.dtype([("id", "i8"), ("rest", "i8")])
"""A request that decodes or was evicted, and its response tokens still to come."""

PROMPT, CHUNK, RESERVE_ALL = (KV_PROJECTIONS.index(name) for name in ("prompt", "chunk", "reserve-all"))


ENGINE = np.dtype(
    [
        ("token_budget", "i8"),
        ("decode_block", "i8"),
        ("kv_capacity", "i8"),
        ("kv_safe_tokens", "f8"),
        ("batch_overhead_s", "f8"),
        ("token_time_s", "f8"),
        ("knee_tokens", "f8"),
        ("kv_projection", "i8"),
        ("decode_partial", "?"),
        ("skip", "?"),
        ("preempt", "?"),
    ],
    align=True,
)
"""`qba.EngineConfig` as the loop takes it; ``kv_projection`` is the place of its name in `KV_PROJECTIONS`."""


@built_in
def arrive(engine, table, waiting, needs, now):
    """Let the next request join its queue."""
    r = now.arrived
    long = int(table[r].predicted_long)
    queues.join(waiting[long], table, r)
    now.waiting_long += long
    if engine.skip:
        queues.set_need(needs, r, need_of(engine, table[r], table[r].response))
    now.arrived += 1


@built_in
def decode(engine, decoding, now):
    """Give the decoding requests their blocks in order; return how many were served and how many finished."""
    served = finished = 0
    left = engine.token_budget
    block, many = engine.decode_block, now.decoding
    while served < many and left > 0:
        rest = decoding[served].rest
        take = min(block, rest)
        if take > left:
            if not engine.decode_partial:
                break
            take = left
        decoding[served].rest = rest - take
        left -= take
        finished += rest == take
        served += 1
    now.left = left
    now.live += engine.token_budget - left
    return served, finished


@built_in
def prefill(decoding, now, r, prompt, rest):
    """Prefill what the budget allows of the ``prompt`` tokens that request r still needs before it decodes."""
    take = min(prompt, now.left)
    now.left -= take
    now.live += take
    if take == prompt:
        decoding[now.joining].id, decoding[now.joining].rest = r, rest
        now.joining += 1
        now.partial, now.prompt_left = -1, 0
    else:
        now.partial, now.prompt_left, now.partial_rest = r, prompt - take, rest


@built_in
def fits(engine, now, need):
    """Whether a request that needs so many tokens, see `need_of`, may be let in under the KV-safe limit."""
    if engine.kv_projection == RESERVE_ALL:
        return now.reserved + need <= engine.kv_safe_tokens
    if engine.kv_projection == CHUNK:
        return now.live + min(need, now.left) <= engine.kv_safe_tokens
    if engine.kv_projection == PROMPT:
        return now.live + need <= engine.kv_safe_tokens
    return now.live + now.prompt_left + need <= engine.kv_safe_tokens


@built_in
def need_of(engine, request, rest):
    """KV tokens that count when a request asks for admission with ``rest`` response tokens still to come."""
    need = request.prompt + request.response
    return need if engine.kv_projection == RESERVE_ALL else need - rest


@built_in
def readmit(engine, table, decoding, evicted, now):
    """Let evicted requests in, the last evicted first; return whether others may be let in as well.

    With nothing in flight the first one need not ask: it fits into the cache, though perhaps not under the safe limit,
    and would otherwise wait for ever.
    """
    i = now.evicted - 1
    while i >= 0 and now.left > 0:
        r, rest = evicted[i].id, evicted[i].rest
        alone = now.joining == 0 and now.partial < 0
        if alone or fits(engine, now, need_of(engine, table[r], rest)):
            for above in range(i, now.evicted - 1):
                evicted[above].id, evicted[above].rest = evicted[above + 1].id, evicted[above + 1].rest
            now.evicted -= 1
            now.readmissions += 1
            whole = table[r].prompt + table[r].response
            now.reserved += whole
            prefill(decoding, now, r, whole - rest, rest)
        else:
            now.blocked_admissions += 1
            if not engine.skip:
                return False
        i -= 1
    return True


@built_in
def admit(rule, state, engine, table, waiting, needs, decoding, now):
    """Let waiting requests in, in the policy's order, while budget is left; false where the policy picks nobody."""
    queues.rewind(waiting[SHORT])
    queues.rewind(waiting[LONG])
    may_promote, passed_over, aside = True, -1, 0
    while now.left > 0 and now.begun + aside < now.arrived:
        if engine.skip and not fits(engine, now, needs[1]):  # not even the smallest
            now.blocked_admissions += now.arrived - now.begun - aside
            break
        short, long = waiting[SHORT, queues.CURSOR], waiting[LONG, queues.CURSOR]
        aged = long >= 0 and now.t - table[long].arrival > now.threshold
        choice = pick(rule, state, short, long, aged and may_promote)
        r = short if choice == SHORT else long
        if r < 0:
            return False
        queue = waiting[min(choice, LONG)]
        if not fits(engine, now, need_of(engine, table[r], table[r].response)):
            now.blocked_admissions += r != passed_over
            if engine.skip:
                queues.put_aside(queue, table)
                aside += 1
                may_promote = may_promote and choice != PROMOTED
            elif choice == PROMOTED and short >= 0:
                may_promote, passed_over = False, r
            else:
                break
            continue
        queues.take(queue, table)
        if engine.skip:
            queues.set_need(needs, r, queues.NO_NEED)
        if choice != SHORT:
            now.waiting_long -= 1
            now.aged += aged
            now.promoted += choice == PROMOTED
        now.begun += 1
        now.reserved += table[r].prompt + table[r].response
        table[r].start, table[r].promoted = now.t, choice == PROMOTED
        started(rule, state, choice)
        prefill(decoding, now, r, table[r].prompt, table[r].response)
    return True


@built_in
def first_tokens(table, decoding, now, served):
    """Note the end of the batch where a request was given its first response token."""
    for i in range(now.fresh, served):
        request = table[decoding[i].id]
        if math.isnan(request.first_token):  # else it was evicted since
            request.first_token = now.t


@built_in
def complete_prefills(rule, state, table, decoding, now):
    """Note the end of the batch that completed a prefill, and tell the policy."""
    for i in range(now.decoding, now.joining):
        request = table[decoding[i].id]
        if math.isnan(request.prefill_end):  # else it was evicted since
            request.prefill_end = now.t
            prefilled(rule, state, request.predicted_long, request.promoted)


@built_in
def depart(table, decoding, now):
    """Let the finished requests go and free their KV; the others close ranks."""
    kept = 0
    for i in range(now.joining):
        r, rest = decoding[i].id, decoding[i].rest
        if rest == 0:
            table[r].finish = now.t
            now.live -= table[r].prompt + table[r].response
            now.reserved -= table[r].prompt + table[r].response
        else:
            decoding[kept].id, decoding[kept].rest = r, rest
            kept += 1


@built_in
def evict(engine, table, decoding, evicted, now):
    """Take the request admitted last out of the cache while the cache is too full and another is left in it."""
    while now.live > engine.kv_capacity and now.decoding + (now.partial >= 0) > 1:
        if now.partial >= 0:
            r, rest = now.partial, now.partial_rest
            now.partial = -1
        else:
            now.decoding -= 1
            r, rest = decoding[now.decoding].id, decoding[now.decoding].rest
        whole = table[r].prompt + table[r].response
        now.live -= whole - rest - now.prompt_left
        now.reserved -= whole
        now.prompt_left = 0
        evicted[now.evicted].id, evicted[now.evicted].rest = r, rest
        now.evicted += 1
        now.evictions += 1
    now.fresh = min(now.fresh, now.decoding)


@compiled
def run(rule, aging, engine, table, log, ledger):
    """Serve all requests; return false where the policy picked from a class of which none waits.

    Fills the times in ``table``, shape (n,), ``log``, shape (batches,), unless that is empty, and ``ledger``, shape (1,).
    """
    n = len(table)
    now = ledger[0]
    now.partial = -1
    now.t = table[0].arrival
    now.threshold = math.nan
    state = np.zeros(STATE_SIZE, np.int64)
    waiting = np.full((2, 4), queues.NOBODY)
    needs = queues.smallest_needs(n if engine.skip else 0)
    # Every request in flight holds at least one token, and none is let in past the safe limit but one that is alone.
    decoding = np.empty(min(n, int(engine.kv_safe_tokens)) + 1, SHARE)
    evicted = np.empty(n if engine.preempt else 0, SHARE)

    aged = not math.isnan(aging.level)
    low, high = [0.0 for _ in range(0)], [0.0 for _ in range(0)]
    ring, ordered, starts = np.empty(aging.window), np.empty(aging.window), 0

    while now.done < n:
        if now.decoding == 0 and now.partial < 0 and now.evicted == 0 and now.begun == now.arrived:
            now.t = max(now.t, table[now.arrived].arrival)
        while now.arrived < n and table[now.arrived].arrival <= now.t:
            arrive(engine, table, waiting, needs, now)
        if aged:
            if aging.sample == HISTORY:
                now.threshold = quantile.value(low, high, aging.level)
            elif aging.sample == WINDOW:
                now.threshold = of_sorted(ordered, min(starts, len(ordered)), aging.level)
            else:
                oldest_short = queues.NOBODY if aging.longs_only else waiting[SHORT, queues.HEAD]
                size = now.waiting_long if aging.longs_only else now.arrived - now.begun
                now.threshold = of_queue(table, oldest_short, waiting[LONG, queues.HEAD], size, now.t, aging.level)
        if len(log):
            before_batch(log[now.batches], now)

        # Decodes first, then the prefill under way, then admissions.
        served, finished = decode(engine, decoding, now)
        decoded = engine.token_budget - now.left
        now.joining = now.decoding
        if now.partial >= 0:
            prefill(decoding, now, now.partial, now.prompt_left, now.partial_rest)
        others = now.evicted == 0 or readmit(engine, table, decoding, evicted, now)
        joined, unfinished = now.joining, now.partial
        if others and now.left > 0 and now.begun < now.arrived:
            if not admit(rule, state, engine, table, waiting, needs, decoding, now):
                return False
        if aged and aging.sample != QUEUE:
            new_partial = now.partial >= 0 and unfinished < 0
            for i in range(joined, now.joining + new_partial):
                request = table[decoding[i].id if i < now.joining else now.partial]
                if request.predicted_long or not aging.longs_only:
                    wait = request.start - request.arrival
                    if aging.sample == HISTORY:
                        quantile.add(low, high, aging.level, wait)
                    else:
                        slide(ring, ordered, starts, wait)
                        starts += 1

        load = engine.token_budget - now.left
        duration = engine.batch_overhead_s + engine.token_time_s * max(0.0, load - engine.knee_tokens)
        now.peak_kv_tokens = max(now.peak_kv_tokens, now.live)
        now.kv_overflows += now.live > engine.kv_capacity
        if len(log):
            log[now.batches].live_kv_tokens = now.live
        now.t += duration
        now.busy += duration
        now.tokens += load
        if served > now.fresh:
            first_tokens(table, decoding, now, served)
        if now.joining > now.decoding:
            complete_prefills(rule, state, table, decoding, now)
        if finished:
            depart(table, decoding, now)
        now.fresh = max(now.fresh, served) - finished
        now.decoding = now.joining - finished
        now.done += finished
        if engine.preempt and now.live > engine.kv_capacity:
            evict(engine, table, decoding, evicted, now)
        if len(log):
            after_batch(log[now.batches], now, state, duration, decoded, load - decoded)
        now.batches += 1
    return True


@built_in
def before_batch(entry, now):
    """Record the boundary; the four counts as they stand, from which `after_batch` takes the difference."""
    entry.time_s, entry.threshold_s = now.t, now.threshold
    entry.waiting_short, entry.waiting_long = now.arrived - now.begun - now.waiting_long, now.waiting_long
    entry.admissions, entry.promotions = now.begun, now.promoted
    entry.evictions, entry.readmissions = now.evictions, now.readmissions


@built_in
def after_batch(entry, now, state, duration, decode_tokens, prefill_tokens):
    entry.duration_s, entry.decode_tokens, entry.prefill_tokens = duration, decode_tokens, prefill_tokens
    entry.counter, entry.debt = state[COUNTER], state[DEBT]
    entry.admissions, entry.promotions = now.begun - entry.admissions, now.promoted - entry.promotions
    entry.evictions, entry.readmissions = now.evictions - entry.evictions, now.readmissions - entry.readmissions
