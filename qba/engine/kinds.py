"""The steps of the loop that differ with the kind of policy: one that chooses between classes, or one that orders by keys."""

from __future__ import annotations

from numba.extending import overload

from qba.engine import by_class, by_key
from qba.engine.rules import INLINE, after_decode, after_finish, by_keys, method
from qba.policies import COUNTER, DEBT


def arrive(rule, state, engine, table, waiting, roots, needs, now):
    """Let the next request join its queue."""


def admit(rule, state, engine, table, waiting, roots, needs, decoding, now):
    """Let waiting requests in, in the policy's order."""


def complete_prefills(rule, state, table, decoding, now):
    """Note the end of prefills, and tell the policy."""


def tell_decodes(rule, state, engine, table, decoding, now):
    """Tell the policy what the next batch gives to those who decode."""


def tell_finish(rule, state, table, r):
    """Tell the policy that request r is done."""


def may_repeat(rule):
    """Whether batches that are all alike may be served at once: not where the policy is told of each."""


def counts(rule, state):
    """Counter and debt, for the record."""


@overload(arrive, jit_options=INLINE)
def _arrive(rule, state, engine, table, waiting, roots, needs, now):
    if by_keys(rule):
        return lambda rule, state, engine, table, waiting, roots, needs, now: by_key.arrive(
            rule, state, engine, table, roots, needs, now
        )
    return lambda rule, state, engine, table, waiting, roots, needs, now: by_class.arrive(
        engine, table, waiting, needs, now
    )


@overload(admit, jit_options=INLINE)
def _admit(rule, state, engine, table, waiting, roots, needs, decoding, now):
    if by_keys(rule):
        return lambda rule, state, engine, table, waiting, roots, needs, decoding, now: by_key.admit(
            rule, state, engine, table, roots, needs, decoding, now
        )
    return lambda rule, state, engine, table, waiting, roots, needs, decoding, now: by_class.admit(
        rule, state, engine, table, waiting, needs, decoding, now
    )


@overload(complete_prefills, jit_options=INLINE)
def _complete_prefills(rule, state, table, decoding, now):
    kind = by_key if by_keys(rule) else by_class
    complete = kind.complete_prefills
    return lambda rule, state, table, decoding, now: complete(rule, state, table, decoding, now)


@overload(tell_decodes, jit_options=INLINE)
def _tell_decodes(rule, state, engine, table, decoding, now):
    if method(rule, "decoded") is None:
        return lambda rule, state, engine, table, decoding, now: None

    def implementation(rule, state, engine, table, decoding, now):
        left = engine.token_budget
        for i in range(now.decoding):
            take = min(engine.decode_block, decoding[i].rest - now.given)
            if take > left:
                take = left if engine.decode_partial else 0
            if take == 0:
                break
            left -= take
            after_decode(rule, state, table, decoding[i].id, take)

    return implementation


@overload(tell_finish, jit_options=INLINE)
def _tell_finish(rule, state, table, r):
    if method(rule, "finished") is None:
        return lambda rule, state, table, r: None
    return lambda rule, state, table, r: after_finish(rule, state, table, r)


@overload(may_repeat, jit_options=INLINE)
def _may_repeat(rule):
    told = method(rule, "decoded") is not None
    return (lambda rule: False) if told else (lambda rule: True)


@overload(counts, jit_options=INLINE)
def _counts(rule, state):
    if by_keys(rule):
        return lambda rule, state: (0, 0)
    return lambda rule, state: (state[COUNTER], state[DEBT])
