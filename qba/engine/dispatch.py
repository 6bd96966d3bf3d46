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


def _rule_method(rule: types.Type, name: str):
    if isinstance(rule, types.BaseNamedTuple):
        return getattr(rule.instance_class, name)


@overload(pick)
def _pick(rule, state, short, long, aged):
    return _rule_method(rule, "pick")


@overload(started)
def _started(rule, state, choice):
    return _rule_method(rule, "started")


@overload(prefilled)
def _prefilled(rule, state, long, promoted):
    return _rule_method(rule, "prefilled")
