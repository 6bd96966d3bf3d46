"""CSV text with exact line numbers, and the rules that its cells must meet.

`csv` reads the structure, because it tells a row that is cut short from one with an empty cell, which faster parsers do
not; pandas turns whole columns of text into times and numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from qba.errors import InputError
from qba.validate import MOST

STAMP = r"(?:19|20)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d)?"
"""ISO 8601 date and time; these years keep nanoseconds inside 64 bits, and a tenth digit would be cut silently."""


@dataclass(frozen=True)
class Cells:
    """Some columns of a CSV file as text.

    Attributes
    ----------
    path : Path
        The file, for messages.
    lines : int array of shape (n,)
        Line in the file of each row; the header is line 1 unless blank lines precede it.
    text : dict of str to pandas.Series
        Column name to the n cells, stripped of blanks.
    """

    path: Path
    lines: np.ndarray
    text: dict[str, pd.Series]

    def refuse_where(self, bad: np.ndarray, name: str, wanted: str) -> None:
        """Raise `InputError` at the first row where ``bad`` holds; ``wanted`` says what would be right."""
        if bad.any():
            row = int(np.argmax(bad))
            value = self.text[name].iloc[row]
            got = shown(value) if value else "an empty cell"
            raise InputError(f"{self.path}, line {self.lines[row]}, column {name}: {got}, but {wanted}")

    def keep(self, rows: np.ndarray) -> Cells:
        """The rows where the bool array ``rows`` holds."""
        return Cells(self.path, self.lines[rows], {name: column[rows] for name, column in self.text.items()})


def shown(text: str, limit: int = 40) -> str:
    """Quote a value for a message: on one line, unprintable characters escaped, cut when long."""
    return ascii(text if len(text) <= limit else text[: limit - 3] + "...")


def read_header(path: str | Path) -> list[str]:
    """Column names of a CSV file, stripped of blanks.

    Raises
    ------
    InputError
        If there is no such file, or it is a directory, empty, or not text.
    """
    path = Path(path)
    with _rows(path) as rows:
        for _, row in rows:
            return [name.strip() for name in row]
    raise InputError(f"{path}: the file is empty, but a header and rows are expected")


def read_cells(path: str | Path, names: Sequence[str]) -> Cells:
    """Read the named columns of a CSV file. Byte-order mark, CRLF, blank lines and no final newline are all right.

    Raises
    ------
    InputError
        If a row has not as many cells as the header, the last row is cut off, quotes do not close, the text is not
        UTF-8, or there is no row at all.
    """
    path = Path(path)
    header = read_header(path)
    for name in names:
        if header.count(name) > 1:
            raise InputError(f"{path}, line 1: column {name} is there {header.count(name)} times, but must be unique")
    places = [header.index(name) for name in names]
    lines, picked = [], []
    row = header
    with _rows(path) as rows:
        next(rows)
        for line, row in rows:
            if len(row) != len(header):
                raise InputError(
                    f"{path}, line {line}: {shown(','.join(row))} has {len(row)} cells, "
                    f"but the header has {len(header)} columns"
                )
            lines.append(line)
            picked.append([row[place].strip() for place in places])
    if not lines:
        raise InputError(f"{path}: there is a header but no row")
    if not row[-1] and not _ends_with_newline(path):
        raise InputError(
            f"{path}, line {lines[-1]}, column {header[-1]}: the file ends before the value, but each row must be whole"
        )
    columns = zip(*picked)
    return Cells(path, np.array(lines), {name: pd.Series(column, dtype=object) for name, column in zip(names, columns)})


@contextmanager
def _rows(path: Path) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """Open ``path`` for its (line, cells) pairs, blank lines left out; all that goes wrong becomes an `InputError`."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory, but a trace file is expected")
    line = 1

    def rows(file) -> Iterator[tuple[int, list[str]]]:
        nonlocal line
        reader = csv.reader(file, strict=True)
        for row in reader:
            if any("\0" in cell for cell in row):
                raise InputError(f"{path}, line {line}: holds a zero byte, but a text file (CSV) is expected")
            if len(row) > 1 or (row and row[0].strip()):
                yield line, row
            line = reader.line_num + 1  # a quoted cell may span lines: a row counts from its first

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield rows(file)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path}, line {_undecodable(path)}: not UTF-8 text, but a text file (CSV) is expected"
        ) from None
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: not well-formed CSV ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _undecodable(path: Path) -> int:
    """First line that is not UTF-8; the decoder itself reads ahead and cannot tell."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() in (b"\n", b"\r")


def whole_tokens(cells: Cells, name: str) -> np.ndarray:
    """Lengths as int64 array of shape (n,): whole numbers from 1 to `MOST` (``374`` or ``374.0``)."""
    values = _numbers(cells, name)
    bad = ~((values >= 1) & (values <= MOST) & (values == np.floor(values)))
    cells.refuse_where(bad, name, "lengths must be whole numbers of tokens, at least 1 (and below 2**31)")
    return values.astype(np.int64)


def seconds(cells: Cells, name: str) -> np.ndarray:
    """Arrivals in seconds as float64 array of shape (n,): finite and sorted."""
    values = _numbers(cells, name)
    cells.refuse_where(~np.isfinite(values), name, "arrivals must be finite numbers of seconds")
    _refuse_unsorted(cells, name, values)
    return values


def stamps(cells: Cells, name: str) -> np.ndarray:
    """Arrivals as int64 array of shape (n,), nanoseconds since 1970 UTC: exact and sorted.

    Stamps without a time zone are read as UTC; a file in which some have one and some have not is refused.
    """
    text = cells.text[name]
    matched = text.str.fullmatch(STAMP).to_numpy(bool)
    wanted = "arrivals must be dates with times such as 2023-11-16 18:15:46.6805900 (zone optional)"
    cells.refuse_where(~matched, name, wanted)
    zoned = text.str.contains(r"(?:Z|[+-]\d\d:?\d\d)$").to_numpy(bool)
    first = "has a time zone" if zoned[0] else "has no time zone"
    cells.refuse_where(zoned != zoned[0], name, f"the first row {first}, and all rows must be alike")
    times = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    cells.refuse_where(times.isna().to_numpy(), name, wanted)
    nanoseconds = times.dt.as_unit("ns").astype("int64").to_numpy()
    _refuse_unsorted(cells, name, nanoseconds)
    return nanoseconds


def is_number(text: str) -> bool:
    """Whether ``text`` reads as a number, NaN included."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(cells: Cells, name: str) -> np.ndarray:
    return pd.to_numeric(cells.text[name], errors="coerce").to_numpy(np.float64)


def _refuse_unsorted(cells: Cells, name: str, values: np.ndarray) -> None:
    early = np.concatenate(([False], np.diff(values) < 0))
    if early.any():
        before = int(np.argmax(early)) - 1
        cells.refuse_where(
            early,
            name,
            f"arrivals must be sorted, and line {cells.lines[before]} has {shown(cells.text[name].iloc[before])}",
        )
