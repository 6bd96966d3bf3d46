"""Lets the compiled loop call a policy's rule.

A rule's class is part of the type of its named tuple, so numba compiles the loop once for each class of policy with the
rule's methods built in: a call costs nothing at run time. There are two kinds of rules (see `qba.policies`): those that
choose between two classes, and those that order all who wait by keys. The functions below have one implementation for
each, picked when the loop is compiled.
"""

from __future__ import annotations

import inspect

from numba import types
from numba.extending import overload

from qba.engine.memory import users_own


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


# numba wants the names of an implementation's arguments; a policy of the user's may have others, such as self. It is also
# compiled with checks of its indices.


@overload(pick)
def _pick(rule, state, short, long, aged):
    method = _method(rule, "pick")
    if method is None or _named(method, "rule", "state", "short", "long", "aged"):
        return method
    method = users_own(method)
    return lambda rule, state, short, long, aged: method(rule, state, short, long, aged)


@overload(started)
def _started(rule, state, choice):
    method = _method(rule, "started", _nothing_on_start)
    if method is None or _named(method, "rule", "state", "choice"):
        return method
    method = users_own(method)
    return lambda rule, state, choice: method(rule, state, choice)


@overload(prefilled)
def _prefilled(rule, state, long, promoted):
    method = _method(rule, "prefilled", _nothing_on_prefill)
    if method is None or _named(method, "rule", "state", "long", "promoted"):
        return method
    method = users_own(method)
    return lambda rule, state, long, promoted: method(rule, state, long, promoted)


def _named(method, *names: str) -> bool:
    """Whether a method is the package's own, or nothing, and has these arguments."""
    return (method.__module__ or "").partition(".")[0] == "qba" and tuple(inspect.signature(method).parameters) == names
