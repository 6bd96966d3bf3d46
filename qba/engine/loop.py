"""The compiled event loop: from batch boundary to batch boundary (paper, section II-A).

A batch leaves at most one prefill unfinished, because only running out of budget stops one and then nothing else is
admitted; the ledger keeps it. Decoding requests stand in order of prefill completion, which is that of admission, in a
compact array. Who was evicted waits on a stack.
"""

from __future__ import annotations

import math

from qba.engine import quantile, queues
from qba.engine.admission import prefill, readmit
from qba.engine.aging import HISTORY, QUEUE, of_queue, of_sorted, slide
from qba.engine.cache import compiled
from qba.engine.kinds import (
    admit, arrive, complete_prefills, counts, may_repeat, tell_decodes, tell_finish,
)  # fmt: skip
from qba.engine.memory import NO_NEED, NOBODY, UNSTEADY, Table, borrow, built_in
from qba.engine.rules import timeless
from qba.engine.stretch import note_first_tokens, repeat
from qba.policies import LONG, SHORT


@built_in
def decode(engine, decoding, now):
    """Give the decoding requests their blocks in order; return how many were served and how many finished."""
    left, block, many = engine.token_budget, engine.decode_block, now.decoding
    served = finished = 0
    if many * block <= left and now.least - now.given > block:  # a whole block for each, and more to come
        served = many
        left -= many * block
    else:
        now.least = NO_NEED
        while served < many:
            rest = decoding[served].rest - now.given
            take = min(block, rest)
            if take > left:
                if not engine.decode_partial or left == 0:
                    break
                take = left
            decoding[served].rest += block - take
            left -= take
            if rest == take:
                finished += 1
            else:
                now.least = min(now.least, decoding[served].rest)
            served += 1
            if left == 0:
                break
        for i in range(served, many):
            decoding[i].rest += block
            now.least = min(now.least, decoding[i].rest)
    now.given += block
    now.left = left
    now.live += engine.token_budget - left
    return served, finished


@built_in
def depart(rule, state, table, decoding, now):
    """Let the finished requests go and free their KV; the others close ranks."""
    kept = 0
    for i in range(now.joining):
        r, rest = decoding[i].id, decoding[i].rest
        if rest == now.given:
            table.finish[r] = now.t
            tell_finish(rule, state, table, r)
            now.live -= table.prompt[r] + table.response[r]
            now.reserved -= table.prompt[r] + table.response[r]
        else:
            decoding[kept].id, decoding[kept].rest = r, rest
            kept += 1


@built_in
def evict(engine, table, decoding, evicted, now):
    """Take the request admitted last out of the cache while the cache is too full and another is left in it."""
    while now.live > engine.kv_capacity and now.decoding + (now.partial >= 0) > 1:
        if now.partial >= 0:
            r, rest = now.partial, now.partial_rest
            now.partial = NOBODY
        else:
            now.decoding -= 1
            r, rest = decoding[now.decoding].id, decoding[now.decoding].rest - now.given
        whole = table.prompt[r] + table.response[r]
        now.live -= whole - rest - now.prompt_left
        now.reserved -= whole
        now.prompt_left = 0
        evicted[now.evicted].id, evicted[now.evicted].rest = r, rest
        now.evicted += 1
        now.evictions += 1
    now.fresh = min(now.fresh, now.decoding)
    now.least = NO_NEED
    for i in range(now.decoding):
        now.least = min(now.least, decoding[i].rest)


@built_in
def note_starts(aging, table, decoding, waits, ring, now, joined, unfinished):
    """Let the waits of this batch's starts into the sample behind θ, for the boundaries to come."""
    new_partial = now.partial >= 0 and unfinished < 0
    for i in range(joined, now.joining + new_partial):
        r = decoding[i].id if i < now.joining else now.partial
        if table.predicted_long[r] or not aging.longs_only:
            wait = table.start[r] - table.arrival[r]
            if aging.sample == HISTORY:
                quantile.add(waits, now, aging.level, wait)
            else:
                slide(ring, waits, now.lower, wait)
                now.lower += 1
    if aging.sample == HISTORY:
        now.threshold = quantile.value(waits, now, aging.level)
    else:
        now.threshold = of_sorted(waits, min(now.lower, len(waits)), aging.level)


@compiled
def run(rule, aging, engine, memory):
    """Serve all requests, or as far as the policy can be followed (see ``problem`` in the ledger).

    Fills ``memory.made``, ``memory.log``, unless that is empty, and ``memory.ledger``.
    """
    given, made, order = memory.given, memory.made, memory.order
    table = Table(
        borrow(given.arrival),
        borrow(given.prompt),
        borrow(given.response),
        borrow(given.predicted_long),
        borrow(given.predicted_tokens),
        borrow(given.client),
        borrow(given.true_long),
        borrow(made.start),
        borrow(made.prefill_end),
        borrow(made.first_token),
        borrow(made.finish),
        borrow(made.promoted),
        borrow(memory.next),
        borrow(order.key),
        borrow(order.queue),
        borrow(order.left),
        borrow(order.right),
        borrow(order.step),
    )
    log, state = borrow(memory.log), borrow(memory.state)
    waiting, needs, roots = borrow(memory.waiting), borrow(memory.needs), borrow(memory.roots)
    decoding, evicted = borrow(memory.decoding), borrow(memory.evicted)
    waits, ring = borrow(memory.waits), borrow(memory.ring)
    now = borrow(memory.ledger)[0]
    n = len(table.arrival)
    aged = not math.isnan(aging.level)
    now.t = table.arrival[0]
    now.threshold = math.inf if aged else math.nan

    while now.done < n:
        if now.decoding == 0 and now.partial < 0 and now.evicted == 0 and now.begun == now.arrived:
            now.t = max(now.t, table.arrival[now.arrived])
        while now.arrived < n and table.arrival[now.arrived] <= now.t:
            arrive(rule, state, engine, table, waiting, roots, needs, now)
        if now.problem:
            return
        if aged and aging.sample == QUEUE:
            oldest_short = NOBODY if aging.longs_only else waiting[SHORT, queues.HEAD]
            size = now.waiting_long if aging.longs_only else now.arrived - now.begun
            now.threshold = of_queue(table, oldest_short, waiting[LONG, queues.HEAD], size, now.t, aging.level)
        if len(log):
            if now.batches == len(log):  # as many as the run without a record took
                now.problem = UNSTEADY
                return
            before_batch(log[now.batches], now)

        # Decodes first, then the prefill under way, then admissions.
        boundary, begun, blocked = now.t, now.begun, now.blocked_admissions
        tell_decodes(rule, state, engine, table, decoding, now)
        served, finished = decode(engine, decoding, now)
        decoded = engine.token_budget - now.left
        now.joining = now.decoding
        if now.partial >= 0:
            prefill(decoding, now, now.partial, now.prompt_left, now.partial_rest)
        others = now.evicted == 0 or readmit(engine, table, decoding, evicted, now)
        joined, unfinished = now.joining, now.partial
        if others and now.left > 0 and now.begun < now.arrived:
            admit(rule, state, engine, table, waiting, roots, needs, decoding, now)
        if now.problem:
            return
        if aged and aging.sample != QUEUE and now.begun > begun:
            note_starts(aging, table, decoding, waits, ring, now, joined, unfinished)

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
            note_first_tokens(table, decoding, now, served)
        if now.joining > now.decoding:
            complete_prefills(rule, state, table, decoding, now)
        settled = finished == 0 and now.joining == now.decoding and now.begun == begun
        if finished:
            depart(rule, state, table, decoding, now)
        now.fresh = max(now.fresh, served) - finished
        now.decoding = now.joining - finished
        now.done += finished
        if engine.preempt and now.live > engine.kv_capacity:
            evict(engine, table, decoding, evicted, now)
        if len(log):
            after_batch(log[now.batches], now, counts(rule, state), duration, decoded, load - decoded)
        now.batches += 1
        if may_repeat(rule) and not len(log):
            refused = now.blocked_admissions - blocked if settled and timeless(rule) else -1
            repeat(engine, aging, table, waiting, decoding, now, boundary, refused, not timeless(rule))


@built_in
def before_batch(entry, now):
    """Record the boundary; the four counts as they stand, from which `after_batch` takes the difference."""
    entry.time_s, entry.threshold_s = now.t, now.threshold
    entry.waiting_short, entry.waiting_long = now.arrived - now.begun - now.waiting_long, now.waiting_long
    entry.admissions, entry.promotions = now.begun, now.promoted
    entry.evictions, entry.readmissions = now.evictions, now.readmissions


@built_in
def after_batch(entry, now, counted, duration, decode_tokens, prefill_tokens):
    entry.duration_s, entry.decode_tokens, entry.prefill_tokens = duration, decode_tokens, prefill_tokens
    entry.counter, entry.debt = counted
    entry.admissions, entry.promotions = now.begun - entry.admissions, now.promoted - entry.promotions
    entry.evictions, entry.readmissions = now.evictions - entry.evictions, now.readmissions - entry.readmissions
