"""Stretches of identical batches, served at once: four of five batches differ from the one before in the clock alone.

Where everyone who decodes gets a whole block and has more to come, the next batches are the same if the prefill under way
takes all the budget left; or if nobody waits; or if the last batch refused everyone who waits, since then the projected KV
use only grows, and a policy's state moves with starts and prefills alone. That goes on until a request finishes or has its
whole prompt, or, where budget is left and so somebody might be let in, until one arrives or turns aged. The clock is moved
by the same additions, so that times stay the same to the last bit.
"""

from __future__ import annotations

import math

from qba.engine.aging import QUEUE
from qba.engine.memory import NO_NEED, built_in
from qba.engine.queues import HEAD
from qba.policies import LONG


@built_in
def note_first_tokens(table, decoding, now, served):
    """Note the end of the batch where a request was given its first response token."""
    for i in range(now.fresh, served):
        r = decoding[i].id
        if math.isnan(table.first_token[r]):  # else it was evicted since
            table.first_token[r] = now.t


@built_in
def repeat(engine, aging, table, waiting, decoding, now, boundary, refused, punctual):
    """Serve the batches ahead that are all alike.

    ``boundary`` is that of the last batch and ``refused`` how many refusals it counted; -1 where somebody started, ended
    a prefill or finished in it, so that others may be let in now. ``punctual``: whether arrivals must be noted at the very
    boundary, since the policy counts the batches since.
    """
    block, many = engine.decode_block, now.decoding
    left = engine.token_budget - many * block
    if left < 0 or (now.least - now.given <= block):
        return
    chunk = 0
    arrives, turns_aged = math.inf, math.inf
    if punctual and now.arrived < len(table.arrival):
        arrives = table.arrival[now.arrived]
    if now.partial >= 0:
        if now.prompt_left <= left:
            return
        chunk, left, refused = left, 0, 0
    elif many == 0:
        return
    elif left > 0:
        if now.evicted > 0:
            return
        if now.arrived < len(table.arrival):
            arrives = table.arrival[now.arrived]
        if now.begun == now.arrived:
            refused = 0
        elif refused < 0:
            return
        else:
            oldest = waiting[LONG, HEAD]
            if oldest >= 0 and not math.isnan(aging.level):
                if aging.sample == QUEUE or engine.skip:
                    return  # the threshold moves with the clock, or others than the oldest are looked at
                if not boundary - table.arrival[oldest] > now.threshold:
                    turns_aged = table.arrival[oldest]
    else:
        refused = 0
    load = engine.token_budget - left
    duration = engine.batch_overhead_s + engine.token_time_s * max(0.0, load - engine.knee_tokens)
    t, busy, threshold, live = now.t, now.busy, now.threshold, now.live
    rest, prompt = now.least - now.given, now.prompt_left
    most_live = engine.kv_capacity if engine.preempt else NO_NEED
    count = 0
    while rest > block and t < arrives and not t - turns_aged > threshold and live + load <= most_live:
        if chunk > 0:
            if prompt <= chunk:
                break
            prompt -= chunk
        rest -= block
        live += load
        t += duration
        busy += duration
        count += 1
        if now.fresh < many:
            now.t = t
            note_first_tokens(table, decoding, now, many)
            now.fresh = many
    if count == 0:
        return
    now.t, now.busy = t, busy
    now.given += count * block
    now.prompt_left = prompt
    if live > engine.kv_capacity:
        now.kv_overflows += count - min(count, max(0, (engine.kv_capacity - now.live) // load))
    now.live = live
    now.peak_kv_tokens = max(now.peak_kv_tokens, live)
    now.tokens += count * load
    now.batches += count
    now.blocked_admissions += count * refused
