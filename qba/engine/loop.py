"""The compiled event loop: from batch boundary to batch boundary (paper, section II-A).

A batch leaves at most one prefill unfinished, because only running out of budget stops one and then nothing else is
admitted; the ledger keeps it. Decoding requests stand in order of prefill completion, which is that of admission, in a
compact array. Who was evicted waits on a stack.
"""

from __future__ import annotations

import math

from qba.config import KV_PROJECTIONS
from qba.engine import quantile, queues
from qba.engine.aging import HISTORY, QUEUE, of_queue, of_sorted, slide
from qba.engine.cache import compiled
from qba.engine.dispatch import pick, prefilled, started
from qba.engine.memory import NO_NEED, NOBODY, Table, borrow, built_in
from qba.engine.stretch import note_first_tokens, repeat
from qba.policies import COUNTER, DEBT, LONG, PROMOTED, SHORT

PROMPT, CHUNK, RESERVE_ALL = (KV_PROJECTIONS.index(name) for name in ("prompt", "chunk", "reserve-all"))


@built_in
def arrive(engine, table, waiting, needs, now):
    """Let the next request join its queue."""
    r = now.arrived
    long = int(table.predicted_long[r])
    queues.join(waiting, long, table, r)
    now.waiting_long += long
    if engine.skip:
        queues.set_need(needs, r, need_of(engine, table, r, table.response[r]))
    now.arrived += 1


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
def prefill(decoding, now, r, prompt, rest):
    """Prefill what the budget allows of the ``prompt`` tokens that request r still needs before it decodes."""
    take = min(prompt, now.left)
    now.left -= take
    now.live += take
    if take == prompt:
        decoding[now.joining].id, decoding[now.joining].rest = r, rest + now.given
        now.least = min(now.least, rest + now.given)
        now.joining += 1
        now.partial, now.prompt_left = NOBODY, 0
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
def need_of(engine, table, r, rest):
    """KV tokens that count when request r asks for admission with ``rest`` response tokens still to come."""
    need = table.prompt[r] + table.response[r]
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
        if alone or fits(engine, now, need_of(engine, table, r, rest)):
            for above in range(i, now.evicted - 1):
                evicted[above].id, evicted[above].rest = evicted[above + 1].id, evicted[above + 1].rest
            now.evicted -= 1
            now.readmissions += 1
            whole = table.prompt[r] + table.response[r]
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
    queues.rewind(waiting)
    may_promote, passed_over, aside = True, -1, 0
    while now.left > 0 and now.begun + aside < now.arrived:
        if engine.skip and not fits(engine, now, needs[1]):  # not even the smallest
            now.blocked_admissions += now.arrived - now.begun - aside
            break
        short, long = waiting[SHORT, queues.CURSOR], waiting[LONG, queues.CURSOR]
        aged = long >= 0 and now.t - table.arrival[long] > now.threshold
        choice = pick(rule, state, short, long, aged and may_promote)
        r = short if choice == SHORT else long
        if r < 0:
            return False
        c = min(choice, LONG)
        if not fits(engine, now, need_of(engine, table, r, table.response[r])):
            now.blocked_admissions += r != passed_over
            if engine.skip:
                queues.put_aside(waiting, c, table)
                aside += 1
                may_promote = may_promote and choice != PROMOTED
            elif choice == PROMOTED and short >= 0:
                may_promote, passed_over = False, r
            else:
                break
            continue
        queues.take(waiting, c, table)
        if engine.skip:
            queues.set_need(needs, r, NO_NEED)
        if choice != SHORT:
            now.waiting_long -= 1
            now.aged += aged
            now.promoted += choice == PROMOTED
        now.begun += 1
        now.reserved += table.prompt[r] + table.response[r]
        table.start[r], table.promoted[r] = now.t, choice == PROMOTED
        started(rule, state, choice)
        prefill(decoding, now, r, table.prompt[r], table.response[r])
    return True


@built_in
def complete_prefills(rule, state, table, decoding, now):
    """Note the end of the batch that completed a prefill, and tell the policy."""
    for i in range(now.decoding, now.joining):
        r = decoding[i].id
        if math.isnan(table.prefill_end[r]):  # else it was evicted since
            table.prefill_end[r] = now.t
            prefilled(rule, state, table.predicted_long[r], table.promoted[r])


@built_in
def depart(table, decoding, now):
    """Let the finished requests go and free their KV; the others close ranks."""
    kept = 0
    for i in range(now.joining):
        r, rest = decoding[i].id, decoding[i].rest
        if rest == now.given:
            table.finish[r] = now.t
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
    """Serve all requests; return false where the policy picked from a class of which none waits.

    Fills ``memory.made``, ``memory.log``, unless that is empty, and ``memory.ledger``.
    """
    given, made = memory.given, memory.made
    table = Table(
        borrow(given.arrival),
        borrow(given.prompt),
        borrow(given.response),
        borrow(given.predicted_long),
        borrow(made.start),
        borrow(made.prefill_end),
        borrow(made.first_token),
        borrow(made.finish),
        borrow(made.promoted),
        borrow(memory.next),
    )
    log, state = borrow(memory.log), borrow(memory.state)
    waiting, needs = borrow(memory.waiting), borrow(memory.needs)
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
            arrive(engine, table, waiting, needs, now)
        if aged and aging.sample == QUEUE:
            oldest_short = NOBODY if aging.longs_only else waiting[SHORT, queues.HEAD]
            size = now.waiting_long if aging.longs_only else now.arrived - now.begun
            now.threshold = of_queue(table, oldest_short, waiting[LONG, queues.HEAD], size, now.t, aging.level)
        if len(log):
            before_batch(log[now.batches], now)

        # Decodes first, then the prefill under way, then admissions.
        boundary, begun, blocked = now.t, now.begun, now.blocked_admissions
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
            depart(table, decoding, now)
        now.fresh = max(now.fresh, served) - finished
        now.decoding = now.joining - finished
        now.done += finished
        if engine.preempt and now.live > engine.kv_capacity:
            evict(engine, table, decoding, evicted, now)
        if len(log):
            after_batch(log[now.batches], now, state, duration, decoded, load - decoded)
        now.batches += 1
        if not len(log):
            refused = now.blocked_admissions - blocked if settled else -1
            repeat(engine, aging, table, waiting, decoding, now, boundary, refused)
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
