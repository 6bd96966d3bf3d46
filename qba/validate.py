"""Checks of scalar options, shared by the engine's configuration, the policies and the workload."""

from __future__ import annotations

import functools
import math
from dataclasses import fields
from numbers import Integral, Real

from qba.errors import InputError


MOST = 2**31 - 1
"""The largest whole number taken anywhere: nothing real is larger, and no sum of such numbers overflows 64 bits."""


def named_parameters(cls: type) -> type:
    """Make a dataclass refuse an unknown parameter with `InputError`, naming those it has."""
    init = cls.__init__
    own = [f.name for f in fields(cls)]

    @functools.wraps(init)
    def checked(self, *values, **named):
        for name in named:
            if name not in own:
                raise InputError(f"{cls.__name__} has no parameter {name!r}: it has {', '.join(own) or 'none'}")
        init(self, *values, **named)

    cls.__init__ = checked
    return cls


def instance(owner: str, name: str, value: object, wanted: type, hint: str = "") -> None:
    """Raise `InputError` unless ``value`` is of the wanted class of the package."""
    if not isinstance(value, wanted):
        raise InputError(f"{owner}: {name} is {value!r:.80}, but it must be a qba.{wanted.__name__}{hint}")


def whole_number(owner: str, name: str, value: object, *, at_least: int) -> int:
    """Return ``value`` as an int, or raise `InputError` if it is not a whole number from ``at_least`` to `MOST`."""
    if isinstance(value, Real) and not isinstance(value, bool):
        if (isinstance(value, Integral) or float(value).is_integer()) and at_least <= value <= MOST:
            return int(value)
    raise InputError(
        f"{owner}: {name} = {value!r}, but it must be a whole number of at least {at_least}{f' and at most {MOST}' if isinstance(value, Real) and value > MOST else ''}"
    )


def one_of(owner: str, name: str, value: object, choices: tuple) -> None:
    """Raise `InputError` unless ``value`` is one of the choices."""
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        raise InputError(f"{owner}: {name} = {value!r}, but it must be one of {', '.join(map(repr, choices))}")


def number(
    owner: str,
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return ``value`` as a float, or raise `InputError` if it is not a finite number inside the bounds."""
    if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
        if (
            (above is None or value > above)
            and (at_least is None or value >= at_least)
            and (at_most is None or value <= at_most)
        ):
            return float(value)
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("above", above), ("at least", at_least), ("at most", at_most))
        if bound is not None
    ]
    wanted = "a finite number" + (" " + " and ".join(bounds) if bounds else "")
    raise InputError(f"{owner}: {name} = {value!r}, but it must be {wanted}")
