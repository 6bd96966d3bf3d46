"""Policies that order all who wait by keys fixed on arrival, in one queue or in several."""

from __future__ import annotations

import math

from qba.engine import order, queues
from qba.engine.admission import fits, need_of, prefill
from qba.engine.memory import IDLE, NO_NEED, NOBODY, WRONG_CHOICE, WRONG_KEY, WRONG_QUEUE, built_in
from qba.engine.rules import after_arrival, after_prefill, after_start, key_of, next_of, queue_of, tries_all

ASIDE = -1
"""Less a queue's number: what stands for it while the request is put aside."""


@built_in
def arrive(rule, state, engine, table, roots, needs, now):
    """Let the next request join its queue."""
    r = now.arrived
    now.arrived += 1
    table.key[r], table.queue[r], table.step[r] = key_of(rule, table, r), queue_of(rule, table, r), now.batches
    if math.isnan(table.key[r]):
        now.problem = WRONG_KEY
    elif table.queue[r] < 0 or table.queue[r] >= len(roots):
        now.problem = WRONG_QUEUE
    else:
        after_arrival(rule, state, table, roots, now, r)
        order.join(roots, table, r)
    now.waiting_long += table.predicted_long[r]
    if engine.skip:
        queues.set_need(needs, r, need_of(engine, table, r, table.response[r]))


@built_in
def admit(rule, state, engine, table, roots, needs, decoding, now):
    """Let waiting requests in, in the policy's order, while budget is left."""
    aside, many_aside = NOBODY, 0
    while now.left > 0 and now.begun + many_aside < now.arrived:
        if engine.skip and tries_all(rule) and not fits(engine, now, needs[1]):  # not even the smallest
            now.blocked_admissions += now.arrived - now.begun - many_aside
            break
        r = next_of(rule, state, table, roots, now)
        if r == order.WRONG:
            now.problem = WRONG_CHOICE
        elif r == NOBODY and now.joining == 0 and now.partial < 0 and many_aside == 0:
            now.problem = IDLE
        if r < 0 or table.queue[r] < 0:  # nobody, or one who was put aside
            break
        if not fits(engine, now, need_of(engine, table, r, table.response[r])):
            now.blocked_admissions += 1
            if not engine.skip or roots[table.queue[r]] != r:
                break
            order.leave(roots, table, r)
            table.next[r], table.queue[r] = aside, ASIDE - table.queue[r]
            aside = r
            many_aside += 1
            continue
        order.leave(roots, table, r)
        if engine.skip:
            queues.set_need(needs, r, NO_NEED)
        now.waiting_long -= table.predicted_long[r]
        now.begun += 1
        now.reserved += table.prompt[r] + table.response[r]
        table.start[r] = now.t
        after_start(rule, state, table, r)
        prefill(decoding, now, r, table.prompt[r], table.response[r])
    while aside != NOBODY:
        table.queue[aside] = ASIDE - table.queue[aside]
        order.join(roots, table, aside)
        aside = table.next[aside]


@built_in
def complete_prefills(rule, state, table, decoding, now):
    """Note the end of the batch that completed a prefill, and tell the policy."""
    for i in range(now.decoding, now.joining):
        r = decoding[i].id
        if math.isnan(table.prefill_end[r]):  # else it was evicted since
            table.prefill_end[r] = now.t
            after_prefill(rule, state, table, r)
