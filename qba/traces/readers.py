"""Request traces from files: one entry a format, recognised by its columns.

What a file may hold, and what becomes of it:

====================================================  =============================================================
byte-order mark, CRLF, blank lines, no final newline  read
other columns beside the needed ones                  left aside
stamps with or without fraction (up to 9 digits)      read exactly, in nanoseconds
stamps without time zone                              read as UTC; a mixture with and without is refused
lengths written ``374.0``                             read
response tokens 0 or missing (an empty cell)          row dropped, counted and reported as `TraceWarning`;
                                                      refused with ``strict=True``
missing, renamed or doubled columns                   refused
prompt tokens 0 or missing                            refused
negative, fractional, NaN or non-numeric lengths      refused
arrivals missing, NaN, not a time, or out of order    refused
rows with more or fewer cells than the header         refused
last row cut off before its last value                refused
no file, a directory, an empty file, no rows          refused
not UTF-8 text, quotes that do not close              refused
====================================================  =============================================================

*Refused* is an `InputError` of one line with file, line and column, the value, and what would be right.
A last row cut off inside its last number cannot be told from a whole one, as the published files end without a newline.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qba.config import EngineConfig
from qba.errors import InputError
from qba.requests import Requests
from qba.traces import table

ROLES = ("arrival", "prompt", "response")


class TraceWarning(UserWarning):
    """Rows of a trace were dropped; the message says how many and why."""


@dataclass(frozen=True)
class Format:
    """One file format: the columns that hold arrival, prompt tokens and response tokens.

    ``clock`` says how arrivals are written: ``"stamps"`` (date and time) or ``"seconds"``.
    """

    name: str
    arrival: str
    prompt: str
    response: str
    clock: str

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.arrival, self.prompt, self.response


FORMATS = (
    # Azure LLM inference traces of 2023 (Splitwise, ISCA 2024) and 2024 (DynamoLLM, HPCA 2025; stamps with +00:00).
    Format("azure-2023", "TIMESTAMP", "ContextTokens", "GeneratedTokens", clock="stamps"),
    # Traces as the Vidur simulator stores them (MLSys 2024).
    Format("vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens", clock="seconds"),
)
"""The formats known by their columns. To add one, add an entry here."""


@dataclass(frozen=True)
class Trace:
    """Requests together with the wall-clock time of their first arrival.

    Attributes
    ----------
    requests : Requests
        Arrivals in seconds since the first row.
    start : numpy.datetime64 or None
        Time of the first row, UTC, in nanoseconds; None where the file counts seconds from an origin of its own.
    dropped : int
        Rows of the file that were dropped.
    """

    requests: Requests
    start: np.datetime64 | None = None
    dropped: int = 0


def read_trace(path: str | Path, columns: Mapping[str, str] | None = None, strict: bool = False) -> Requests:
    """Read a request trace from a CSV file; the module's docstring has the rules.

    Parameters
    ----------
    path : str or Path
        The file.
    columns : mapping, optional
        For files of no known format: which column is which, as ``{"arrival": ..., "prompt": ..., "response": ...}``.
        Arrivals may be seconds or dates with times.
    strict : bool
        Refuse rows whose response is 0 or missing, instead of dropping them with a `TraceWarning`.

    Returns
    -------
    Requests
        Arrivals in seconds since the first row, exact to the nanosecond for stamps; lengths in tokens; long above the
        whole trace's 0.85-quantile of response tokens.

    Raises
    ------
    InputError
        If the file cannot be read as a trace; the message names file, line, column and value.
    """
    return read_dated(path, columns, strict, stacklevel=3).requests


def read_dated(
    path: str | Path, columns: Mapping[str, str] | None = None, strict: bool = False, *, stacklevel: int = 2
) -> Trace:
    """As `read_trace`, but keep the time of the first row, so that traces of one clock can be merged."""
    header = table.read_header(path)
    form = recognise(path, header) if columns is None else _given(path, header, columns)
    cells = table.read_cells(path, form.columns)
    clock = form.clock
    if clock == "either":
        clock = "seconds" if table.is_number(cells.text[form.arrival].iloc[0]) else "stamps"
    arrivals = table.stamps(cells, form.arrival) if clock == "stamps" else table.seconds(cells, form.arrival)
    prompts = table.whole_tokens(cells, form.prompt)
    answered = _answered(cells, form.response, strict, stacklevel + 1)
    arrivals = arrivals[answered]
    since_first = arrivals - arrivals[0]
    return Trace(
        Requests(
            arrival_s=since_first / 1e9 if clock == "stamps" else since_first,
            prompt_tokens=prompts[answered],
            response_tokens=table.whole_tokens(cells.keep(answered), form.response),
        ),
        np.datetime64(int(arrivals[0]), "ns") if clock == "stamps" else None,
        int(np.count_nonzero(~answered)),
    )


def recognise(path: str | Path, header: list[str]) -> Format:
    """The entry of `FORMATS` whose columns are all in ``header``, or an `InputError` that says what is missing."""
    for form in FORMATS:
        if set(form.columns) <= set(header):
            return form
    known = "; ".join(f"{form.name}: {','.join(form.columns)}" for form in FORMATS)
    nearest = max(FORMATS, key=lambda form: len(set(form.columns) & set(header)))
    missing = [name for name in nearest.columns if name not in header]
    if len(missing) < len(nearest.columns):
        problem = f"column {missing[0]} of the format {nearest.name} is missing"
    else:
        problem = f"no known format has these columns (known are {known})"
    raise InputError(
        f"{path}, line 1: {problem}; there are {_listed(header)}; for another format give "
        'columns={"arrival": ..., "prompt": ..., "response": ...}'
    )


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


def _answered(cells: table.Cells, name: str, strict: bool, stacklevel: int) -> np.ndarray:
    """Which rows have a response at all; the others are refused or reported."""
    text = cells.text[name]
    missing = (text == "").to_numpy(bool)
    zero = text.str.fullmatch(r"[+-]?0+(\.0*)?").to_numpy(bool)
    answered = ~(missing | zero)
    if answered.all():
        return answered
    if strict or not answered.any():
        wanted = "strict reading wants" if strict else "at least one row must have"
        cells.refuse_where(~answered, name, f"{wanted} a response of at least 1 token")
    reasons = [
        f"response tokens {what} ({count:,})"
        for what, count in (("0", zero.sum()), ("missing", missing.sum()))
        if count
    ]
    reason = " or ".join(reasons) if len(reasons) > 1 else reasons[0].rpartition(" (")[0]
    warnings.warn(
        f"{cells.path}: {np.count_nonzero(~answered):,} of {len(text):,} rows dropped: {reason}",
        TraceWarning,
        stacklevel=stacklevel,
    )
    return answered


def _given(path: str | Path, header: list[str], columns: Mapping[str, str]) -> Format:
    wanted = 'columns must be {"arrival": ..., "prompt": ..., "response": ...}'
    if not isinstance(columns, Mapping) or set(columns) != set(ROLES):
        raise InputError(f"read_trace: {wanted}, not {columns!r}")
    for role in ROLES:
        if columns[role] not in header:
            raise InputError(
                f"{path}, line 1: no column {columns[role]!r} to read the {role} from; there are {_listed(header)}"
            )
    if len(set(columns.values())) < len(ROLES):
        raise InputError(f"read_trace: {wanted} with three different columns, not {dict(columns)!r}")
    return Format("given", *(columns[role] for role in ROLES), clock="either")


def _listed(header: list[str]) -> str:
    names = [table.shown(name) for name in header[:8]]
    return ", ".join(names) + (f" and {len(header) - 8} more" if len(header) > 8 else "")
