"""Lets the compiled loop call a policy's rule.

A rule's class is part of the type of its named tuple, so numba compiles the loop once for each class of policy with the
rule's methods built in: a call costs nothing at run time.
"""

from __future__ import annotations

from numba import types
from numba.extending import overload


def pick(rule, state, short, long, aged):
    return rule.pick(state, short, long, aged)


def started(rule, state, choice):
    rule.started(state, choice)


def prefilled(rule, state, long, promoted):
    rule.prefilled(state, long, promoted)


def _nothing_on_start(rule, state, choice):
    pass


def _nothing_on_prefill(rule, state, long, promoted):
    pass


def _method(rule: types.Type, name: str, default=None):
    return getattr(rule.instance_class, name, default) if isinstance(rule, types.BaseNamedTuple) else None


@overload(pick)
def _pick(rule, state, short, long, aged):
    return _method(rule, "pick")


@overload(started)
def _started(rule, state, choice):
    return _method(rule, "started", _nothing_on_start)


@overload(prefilled)
def _prefilled(rule, state, long, promoted):
    return _method(rule, "prefilled", _nothing_on_prefill)
