"""Request traces from files: formats recognised by their columns (`qba.traces.formats`), damage told from dirt.

What a file may hold, and what becomes of it:

====================================================  =============================================================
byte-order mark, CRLF, blank lines, no final newline  read
gzip; CSV, JSON lines, Parquet                        read, recognised by the content, not by the name
quoted values; blanks around values                   read
other columns beside the needed ones                  left aside
ties, also thousands                                  read, in the order of the file
stamps with or without fraction (up to 9 digits)      read exactly, in nanoseconds
stamps with time zones, also different ones           converted to UTC exactly
stamps without time zone                              read as UTC
stamps with and without time zone in one file         refused
lengths written ``374.0`` or ``3.74e2``               read
plain numbers as arrivals, columns given by the user  seconds; if the first is at least 1e11, 1e14 or 1e17: milli-,
                                                      micro- or nanoseconds since 1970, which the account states;
                                                      refused where others are not of the same magnitude
plain numbers as arrivals, a known format             in the format's unit; at 1e11 seconds and beyond refused
``clock=`` given                                      arrivals are read so, whatever the format
rows out of order                                     sorted by arrival, ties in the order of the file; counted
header repeated within the file                       row dropped, counted
request that failed (vLLM's ``errors``)               row dropped, counted
response or prompt tokens 0                           row dropped, counted
response or prompt tokens missing                     row dropped, counted (an empty cell, NaN, null or None)
more than 10,000,000 tokens                           row dropped, counted
no row left                                           refused
missing, renamed or doubled columns                   refused
lengths negative, fractional, infinite, not a number  refused
arrivals missing, NaN, infinite, not a time           refused
days that do not exist, stamps without time of day    refused
a tenth digit after the second                        refused
rows with more or fewer cells than the header         refused
last row cut off before its last value                refused
JSON lines that are not objects, JSON arrays          refused
zero bytes, not UTF-8 text, quotes that do not close  refused
gzip or Parquet files cut off or damaged              refused
no file, a directory, an empty file, no rows          refused
====================================================  =============================================================

*Refused* is an `InputError` of one line with file, line and column, the value, and what would be right. *Counted* is an
entry of `Trace.counts`, shown by `Trace.account` and as `TraceWarning` ("12 of 19,366 rows dropped: response tokens 0");
a row with several reasons counts under the first of: header, failed, response, prompt. With ``strict=True`` whatever
would be counted is refused too.

A last row cut off inside its last number cannot be told from a whole one, as the published files end without a newline.
Files are read in blocks: beside the requests themselves (26 bytes a row) memory holds little, however long the file;
vLLM's JSON, a single object, is read whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qba.config import EngineConfig
from qba.errors import InputError
from qba.requests import Requests
from qba.traces.clocks import check_clock
from qba.traces.formats import given, recognise
from qba.traces.rules import OUT_OF_ORDER, Reading, account
from qba.traces.tables import open_table


class TraceWarning(UserWarning):
    """Rows of a trace were dropped or sorted, or something else a user must know; a line of `Trace.account`."""


@dataclass(frozen=True)
class Trace:
    """Requests, the wall-clock time of their first arrival, and what became of the rows of the file.

    Attributes
    ----------
    requests : Requests
        Arrivals in seconds since the first.
    start : numpy.datetime64 or None
        Time of the first arrival, UTC, in nanoseconds; None where the file counts from an origin of its own.
    format : str
        Name of the format.
    rows : int
        Rows in the file.
    counts : dict of str to int
        Rows dropped, by reason as shown (``{"response tokens 0": 12}``), and ``"rows out of order"``.
    notes : tuple of str
        What else was understood or left aside: the unit recognised, images not modelled.
    """

    requests: Requests
    start: np.datetime64 | None = None
    format: str = ""
    rows: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def dropped(self) -> int:
        """Rows of the file that were dropped, for whatever reason."""
        return sum(count for reason, count in self.counts.items() if reason != OUT_OF_ORDER)

    def account(self) -> list[str]:
        """What a user must know, one line each: rows dropped, rows sorted, notes. Empty for a clean file."""
        return account(self.rows, self.counts) + list(self.notes)


def read_trace(
    path: str | Path, columns: Mapping[str, str] | None = None, strict: bool = False, clock: str | None = None
) -> Requests:
    """Read a request trace from a file: CSV, JSON or Parquet; the module's docstring has the rules.

    Parameters
    ----------
    path : str or Path
        The file.
    columns : mapping, optional
        Which column (or JSON key) is which, as ``{"arrival": ..., "prompt": ..., "response": ...}``; default: as the
        format recognised has it.
    strict : bool
        Refuse rows that would be dropped, and arrivals out of order, instead of counting them with a `TraceWarning`.
    clock : {"stamps", "seconds", "milliseconds", "microseconds", "nanoseconds"}, optional
        How arrivals are written; default: as the format has it, or found from the first row where ``columns`` are given.

    Returns
    -------
    Requests
        Arrivals in seconds since the first, exact to the nanosecond for stamps; lengths in tokens; long above the
        whole trace's 0.85-quantile of response tokens.

    Raises
    ------
    InputError
        If the file cannot be read as a trace; the message names file, line, column and value.
    """
    return read_dated(path, columns, strict, clock, stacklevel=3).requests


def read_dated(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    strict: bool = False,
    clock: str | None = None,
    *,
    stacklevel: int = 2,
) -> Trace:
    """As `read_trace`, but keep the time of the first arrival, so that traces can be merged, and the account."""
    check_clock(clock)
    table = open_table(path)
    place = f"{table.path}, {table.place(None)}"
    form = recognise(place, table.header) if columns is None else given(place, table.header, columns)
    reading = Reading(table, form, clock, strict)
    needed = form.columns + ((form.failure,) if form.failure in table.header else ())
    for block in table.blocks(needed):
        reading.add(block)
    requests, start = reading.requests()
    notes = form.notes
    if reading.clock.recognised:
        notes += (f"column {form.arrival} read as {reading.clock.kind} since 1970, by its size (clock= sets another)",)
    counts = {reason: count for reason, count in reading.counts.items() if count}
    trace = Trace(requests, start, form.name, reading.rows, counts, notes)
    for line in trace.account():
        warnings.warn(f"{path}: {line}", TraceWarning, stacklevel=stacklevel)
    return trace


def drop_oversize(requests: Requests, config: EngineConfig = EngineConfig()) -> tuple[Requests, int]:
    """Leave out the requests that the engine could never admit: prompts longer than η M_max tokens.

    Returns
    -------
    kept : Requests
        The others; they keep their arrivals and labels.
    dropped : int
        How many were left out.

    Raises
    ------
    InputError
        If nothing would be left.
    """
    fits = requests.prompt_tokens <= config.kv_safe_tokens
    dropped = int(np.count_nonzero(~fits))
    if not dropped:
        return requests, 0
    if dropped == len(requests):
        raise InputError(
            f"drop_oversize: all {dropped:,} prompts are longer than the KV-safe limit of {config.kv_safe_tokens:g} "
            "tokens: enlarge kv_capacity or scale the lengths"
        )
    kept = {name: getattr(requests, name)[fits] for name in Requests.__slots__}
    return Requests(**kept), dropped
