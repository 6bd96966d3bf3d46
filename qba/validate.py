"""Checks of scalar options, shared by the engine's configuration, the policies and the workload."""

from __future__ import annotations

import math
from numbers import Integral, Real

from qba.errors import InputError


def whole_number(owner: str, name: str, value: object, *, at_least: int) -> int:
    """Return ``value`` as an int, or raise `InputError` if it is not a whole number >= ``at_least``."""
    if isinstance(value, Real) and not isinstance(value, bool):
        if (isinstance(value, Integral) or float(value).is_integer()) and value >= at_least:
            return int(value)
    raise InputError(f"{owner}: {name} = {value!r}, but it must be a whole number of at least {at_least}")


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
