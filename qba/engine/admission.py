"""Letting requests in: the KV-safe limit, the first chunk, and those who come back after an eviction."""

from __future__ import annotations

from qba.config import KV_PROJECTIONS
from qba.engine.memory import NOBODY, built_in

PROMPT, CHUNK, RESERVE_ALL = (KV_PROJECTIONS.index(name) for name in ("prompt", "chunk", "reserve-all"))


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
