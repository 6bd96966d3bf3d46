"""Arrivals: dates with times, or counts of seconds, milliseconds, microseconds or nanoseconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from qba.errors import InputError
from qba.traces.formats import CLOCKS
from qba.traces.values import Values, instants, is_number, numbers

TICKS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
"""Units of a count, and how many make a second."""

MOST = 1e11
"""No count reaches this many seconds (3,170 years): a larger number counts a smaller unit. So 1e11 and more are
milliseconds (since 1970 they have passed it in 1973), 1e14 and more microseconds, 1e17 and more nanoseconds."""

Finding = tuple[np.ndarray, str]
"""Rows where an arrival is wrong, shape (n,), and what would be right."""


def check_clock(clock: str | None) -> None:
    """Raise `InputError` where ``clock`` is no clock."""
    if clock is not None and clock not in CLOCKS:
        raise InputError(f"read_trace: clock = {clock!r}, but it must be one of {', '.join(CLOCKS)}")


class Clock:
    """Turns cells into ticks, the same way for a whole file.

    Parameters
    ----------
    kind : str
        One of `CLOCKS`, or ``"either"``: the first cell tells whether arrivals are stamps or numbers, and its size the
        unit of the latter (see `MOST`). All others must be like it.

    Attributes
    ----------
    kind : str
        One of `CLOCKS` once a cell has been read.
    recognised : bool
        Whether a unit other than seconds was found by the size of the numbers.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fixed = kind != "either"
        self.zoned: bool | None = None
        self.recognised = False

    @property
    def ticks_per_second(self) -> int:
        return TICKS.get(self.kind, 10**9)

    def read(self, text: pa.Array) -> tuple[Values, list[Finding]]:
        """The ticks of a block that has rows, and what is wrong with them."""
        if self.kind == "either":
            first = text[0].as_py()
            self.kind = _unit(float(numbers(text[:1]).values[0])) if is_number(first) else "stamps"
            self.recognised = self.kind not in ("stamps", "seconds")
        return self._stamps(text) if self.kind == "stamps" else self._count(text)

    def start(self, first: int | float) -> np.datetime64 | None:
        """UTC of the tick ``first``, in nanoseconds; None where a count is not since 1970."""
        nanoseconds = int(first) * (10**9 // self.ticks_per_second)
        if self.kind == "stamps":
            return np.datetime64(nanoseconds, "ns")
        since_1970 = self.kind != "seconds" and first >= MOST * self.ticks_per_second / 1000
        return np.datetime64(nanoseconds, "ns") if since_1970 and nanoseconds < 2**63 else None

    def _stamps(self, text: pa.Array) -> tuple[Values, list[Finding]]:
        found, zoned = instants(text)
        wanted = "arrivals must be dates with times such as 2023-11-16 18:15:46.6805900 (zone optional)"
        wrong = found.bad | found.missing
        if found.bad.any() and is_number(text[int(np.argmax(found.bad))].as_py()):
            wanted += "; if they are counts, give clock=, such as clock='milliseconds'"
        if self.zoned is None:
            self.zoned = bool(zoned[0])
        first = "has a time zone" if self.zoned else "has no time zone"
        alike = f"the first row {first}, and all rows must be alike"
        return found, [(wrong, wanted), ((zoned != self.zoned) & ~wrong, alike)]

    def _count(self, text: pa.Array) -> tuple[Values, list[Finding]]:
        found = numbers(text)
        size = np.abs(found.values.astype(np.float64))
        most = MOST * self.ticks_per_second
        findings = [(found.bad | found.missing, f"arrivals must be finite numbers of {self.kind}")]
        if self.fixed:
            wanted = f"arrivals must be below {most:g} {self.kind}; if they count another unit, give clock="
            findings.append((size >= most, wanted))
        else:
            other = (size >= most) | (size < most / 1000 if self.kind != "seconds" else False)
            findings.append((other, f"the first row counts {self.kind}, and all rows must be alike (or give clock=)"))
        return found, findings


def _unit(first: float) -> str:
    return next((unit for unit, ticks in TICKS.items() if abs(first) < MOST * ticks), "nanoseconds")
