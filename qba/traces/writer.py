"""Writing requests as a trace file, in the columns of the Azure traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from qba.errors import InputError
from qba.requests import Requests

ROWS_AT_ONCE = 500_000
"""Rows turned into text at a time: enough to be quick, few enough to need no more than some 100 MB."""

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write_trace(requests: Requests | Iterable[Requests], path: str | Path, start: str = "2024-05-10 00:00:00") -> Path:
    """Write TIMESTAMP (UTC, microseconds), ContextTokens, GeneratedTokens, as the Azure traces of 2024 have them.

    Labels are not written: a reader derives them.

    Parameters
    ----------
    requests : Requests or iterable of Requests
        What to write. Several are written one after the other, each as it comes, so that a trace need not fit into
        memory; their arrivals count from the same origin.
    path : str or Path
        The file; one that exists is replaced.
    start : str
        Time of the request that arrives at 0 s, UTC.

    Raises
    ------
    InputError
        If ``start`` is not a date with time, or the file cannot be written.
    """
    try:
        origin = np.datetime64(start, "us")
    except ValueError:
        raise InputError(f"write_trace: start = {start!r}, but it must be a time such as 2024-05-10 00:00:00") from None
    options = csv.WriteOptions(include_header=False, quoting_style="none")
    try:
        with Path(path).open("wb") as file:
            file.write(HEADER)
            for part in [requests] if isinstance(requests, Requests) else requests:
                for block in _blocks(part, origin):
                    csv.write_csv(block, file, options)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    return Path(path)


def _blocks(requests: Requests, origin: np.datetime64) -> Iterator[pa.Table]:
    """The rows as text and numbers, `ROWS_AT_ONCE` at a time."""
    for first in range(0, len(requests), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        times = origin + np.rint(requests.arrival_s[rows] * 1e6).astype("timedelta64[us]")
        stamps = pc.cast(pa.array(times), pa.string())
        yield pa.table(
            {
                "TIMESTAMP": pc.binary_join_element_wise(stamps, "+00:00", ""),
                "ContextTokens": requests.prompt_tokens[rows],
                "GeneratedTokens": requests.response_tokens[rows],
            }
        )
