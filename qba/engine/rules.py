"""Lets the compiled loop call the methods of a policy that orders by keys (see `qba.definition`).

Each function has an implementation for each class of rules, made when the loop is compiled: the policy's own method, or
what stands in for one that it does not have.
"""

from __future__ import annotations

import dis
from collections.abc import Callable

from numba import types
from numba.extending import overload

from qba.engine import order
from qba.engine.memory import users_own

INLINE = {"nogil": True, "forceinline": True}
"""As in `built_in`, for what is overloaded."""


def by_keys(rule: types.Type) -> bool:
    """Whether rules of this type order by keys."""
    return hasattr(rule.instance_class, "methods") if isinstance(rule, types.BaseNamedTuple) else False


def method(rule: types.Type, name: str) -> Callable | None:
    """The rule's method of that name, to be called from compiled code, or None."""
    function = rule.instance_class.methods.get(name) if by_keys(rule) else None
    return function and users_own(function)


def see(rule, table, r):
    """What the policy may know of request r."""


def key_of(rule, table, r):
    """The key that request r waits with."""


def queue_of(rule, table, r):
    """The queue that request r waits in."""


def next_of(rule, state, table, roots, now):
    """The request that is next; `NOBODY`, or `order.WRONG`."""


def after_arrival(rule, state, table, roots, now, r):
    """Tell the policy that request r has come and is about to join its queue."""


def after_start(rule, state, table, r):
    """Tell the policy that request r was let in."""


def after_prefill(rule, state, table, r):
    """Tell the policy that the prefill of request r ended."""


def after_decode(rule, state, table, r, tokens):
    """Tell the policy that request r is given tokens in this batch."""


def after_finish(rule, state, table, r):
    """Tell the policy that request r is done."""


def tries_all(rule):
    """Whether everyone who waits is tried in turn, and none twice, whatever the clock says."""


@overload(tries_all, jit_options=INLINE)
def _tries_all(rule):
    chooses = method(rule, "choose") is not None
    return (lambda rule: False) if chooses else (lambda rule: True)


def timeless(rule):
    """Whether a candidate that was refused stays the candidate while nobody comes, starts, ends a prefill or finishes."""


@overload(timeless, jit_options=INLINE)
def _timeless(rule):
    choose = rule.instance_class.methods.get("choose") if by_keys(rule) else None
    if choose is None or not reads(choose, choose.__code__.co_varnames[3]):
        return lambda rule: True
    return lambda rule: False


def reads(function: Callable, name: str) -> bool:
    """Whether a function's code ever looks at its variable of that name."""
    for instruction in dis.get_instructions(function):
        if "LOAD" in instruction.opname:
            looked_at = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            if name in looked_at:  # newer Pythons load two at once
                return True
    return False


@overload(see, jit_options=INLINE)
def _see(rule, table, r):
    return rule.instance_class.see


@overload(key_of, jit_options=INLINE)
def _key_of(rule, table, r):
    key = method(rule, "key")
    if key is None:
        return lambda rule, table, r: 0.0
    return lambda rule, table, r: 1.0 * key(rule, see(rule, table, r))  # a truth value is a key, too


@overload(queue_of, jit_options=INLINE)
def _queue_of(rule, table, r):
    queue = method(rule, "queue")
    if queue is None:
        return lambda rule, table, r: 0
    return lambda rule, table, r: int(queue(rule, see(rule, table, r)))


@overload(next_of, jit_options=INLINE)
def _next_of(rule, state, table, roots, now):
    choose = method(rule, "choose")
    if choose is None:
        return lambda rule, state, table, roots, now: roots[0]

    def implementation(rule, state, table, roots, now):
        order.drop_begun(roots, table, now)
        return order.chosen(int(choose(rule, state, roots, order.line(table, now))), roots, now)

    return implementation


@overload(after_arrival, jit_options=INLINE)
def _after_arrival(rule, state, table, roots, now, r):
    tell = method(rule, "arrived")
    if tell is None:
        return lambda rule, state, table, roots, now, r: None

    def implementation(rule, state, table, roots, now, r):
        order.drop_begun(roots, table, now)
        tell(rule, state, see(rule, table, r), table.queue[r], roots)

    return implementation


def _teller(name: str) -> Callable:
    def made(rule, state, table, r):
        tell = method(rule, name)
        if tell is None:
            return lambda rule, state, table, r: None

        def implementation(rule, state, table, r):
            tell(rule, state, see(rule, table, r), table.queue[r])

        return implementation

    return made


overload(after_start, jit_options=INLINE)(_teller("started"))
overload(after_prefill, jit_options=INLINE)(_teller("prefilled"))
overload(after_finish, jit_options=INLINE)(_teller("finished"))


@overload(after_decode, jit_options=INLINE)
def _after_decode(rule, state, table, r, tokens):
    tell = method(rule, "decoded")
    if tell is None:
        return lambda rule, state, table, r, tokens: None

    def implementation(rule, state, table, r, tokens):
        tell(rule, state, see(rule, table, r), table.queue[r], tokens)

    return implementation
