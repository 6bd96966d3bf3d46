"""Policies that choose between the oldest predicted-short request, the oldest predicted-long one, and promoting that."""

from __future__ import annotations

import math

from qba.engine import queues
from qba.engine.admission import fits, need_of, prefill
from qba.engine.dispatch import pick, prefilled, started
from qba.engine.memory import NO_NEED, WRONG_CHOICE, built_in
from qba.policies import LONG, PROMOTED, SHORT


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
def admit(rule, state, engine, table, waiting, needs, decoding, now):
    """Let waiting requests in, in the policy's order, while budget is left."""
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
        if r < 0 or choice < SHORT or choice > PROMOTED:
            now.problem = WRONG_CHOICE
            break
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


@built_in
def complete_prefills(rule, state, table, decoding, now):
    """Note the end of the batch that completed a prefill, and tell the policy."""
    for i in range(now.decoding, now.joining):
        r = decoding[i].id
        if math.isnan(table.prefill_end[r]):  # else it was evicted since
            table.prefill_end[r] = now.t
            prefilled(rule, state, table.predicted_long[r], table.promoted[r])
