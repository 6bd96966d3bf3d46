"""What a column of text says: numbers and instants, and where it says nothing.

Each function takes a pyarrow array of text without nulls and is quick where the whole block is clean; where it is not,
the block is read again with care.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

STAMP = r"^(?:19|20)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?$"
"""ISO 8601 date and time; these years keep nanoseconds inside 64 bits, and a tenth digit would be cut silently."""

ZONED = r"(?:Z|[+-]\d\d:?\d\d)$"
NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"
MISSING = pa.array(["", "nan", "null", "none"])
"""How files write that there is no value, in lower case."""


@dataclass(frozen=True)
class Values:
    """A block's values, shape (n,) each.

    Attributes
    ----------
    values : int64 or float64 array
        0 where there is none.
    missing, bad : bool array
        Where the cell says that there is no value; where it says nothing that can be read.
    """

    values: np.ndarray
    missing: np.ndarray
    bad: np.ndarray


def numbers(text: pa.Array) -> Values:
    """Numbers, as int64 where all of the block are whole and written so, else as float64; infinity is bad."""
    none = np.zeros(len(text), bool)
    if not pc.any(pc.match_substring(text, "x", ignore_case=True)).as_py():  # pyarrow would read 0x10 as 16
        try:
            return Values(pc.cast(text, pa.int64()).to_numpy(zero_copy_only=False), none, none)
        except pa.ArrowInvalid:
            pass
    text = pc.utf8_trim_whitespace(text)
    missing = pc.is_in(pc.utf8_lower(text), MISSING)
    number = pc.match_substring_regex(text, NUMBER)
    text = pc.if_else(number, pc.utf8_ltrim(text, "+"), "0")
    try:
        values = pc.cast(text, pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        values = pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)
    missing = missing.to_numpy(zero_copy_only=False)
    bad = ~(number.to_numpy(zero_copy_only=False) | missing)
    endless = ~np.isfinite(values)
    return Values(np.where(endless, 0, values) if endless.any() else values, missing, bad | endless)


def instants(text: pa.Array) -> tuple[Values, np.ndarray]:
    """Nanoseconds since 1970 UTC, exact; and which cells have a time zone, shape (n,). Others are read as UTC."""
    none = np.zeros(len(text), bool)
    if pc.all(pc.match_substring_regex(text, STAMP)).as_py():
        for zone in ("UTC", None):
            try:
                times = pc.cast(text, pa.timestamp("ns", zone))
            except pa.ArrowInvalid:  # some have no zone, or some have one, or a day does not exist
                continue
            found = pc.cast(times, pa.int64()).to_numpy(zero_copy_only=False)
            return Values(found, none, none), np.full(len(text), zone is not None)
    text = pc.utf8_trim_whitespace(text)
    missing = pc.is_in(pc.utf8_lower(text), MISSING).to_numpy(zero_copy_only=False)
    matched = pc.match_substring_regex(text, STAMP)
    times = pd.to_datetime(
        pc.if_else(matched, text, "NaT").to_numpy(zero_copy_only=False), format="ISO8601", utc=True, errors="coerce"
    )
    bad = np.asarray(times.isna()) & ~missing
    found = times.as_unit("ns").asi8
    zoned = pc.match_substring_regex(text, ZONED).to_numpy(zero_copy_only=False)
    return Values(np.where(bad | missing, 0, found), missing, bad), zoned


def is_number(text: str) -> bool:
    """Whether a cell reads as a number or as a missing one, rather than as a date."""
    return not numbers(pa.array([text])).bad[0]
