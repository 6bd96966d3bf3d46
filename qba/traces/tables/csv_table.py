"""CSV, block by block.

pyarrow splits the text and hands over whole columns. It was chosen by a measurement on 27.3 million rows (1.1 GB), text to
int64 arrays: pyarrow 4.6 s, DuckDB 4.0 s, polars 8.1 s, pandas 71 s, at peaks of 1.6, 1.6, 1.3 and 1.4 GiB. DuckDB reads files
only, so that our own checks would need a second pass; pyarrow takes blocks of bytes, refuses rows of another length, reads
Parquet too, and pandas uses it where it is. Python's `csv` then finds the line where something is wrong: it counts exactly.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import csv as arrow_csv

from qba.errors import InputError
from qba.traces.tables.text import opened, shown

BLOCK_BYTES = 4 << 20
"""Text handed over at a time: larger blocks are no quicker."""

LONGEST_ROW = 16
"""In blocks. A longer row is damage: a quotation mark that does not close."""

_OPENING = rb'(?:\A|(?<=[,\r\n]))"'
_QUOTED = re.compile(_OPENING + rb'[^"]*+(?:""[^"]*+)*+"')
_OPENING = re.compile(_OPENING)


class CsvTable:
    """A CSV file with a header. Byte-order mark, CRLF, blank lines and no final newline are all right.

    Raises
    ------
    InputError
        Here if there is no header or it is not text; in `blocks` if a row has not as many cells as the header, the last
        row is cut off, quotes do not close, the text is not UTF-8, a byte is zero, or there is no row at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._rows() as rows:
            self.header_line, row = next(rows, (1, None))
        if row is None:
            raise InputError(f"{path}: the file is empty, but a header and rows are expected")
        self.header = [name.strip() for name in row]

    def place(self, row: int | None) -> str:
        """Where data row ``row`` (from 0) starts; None for the header."""
        if row is None:
            return f"line {self.header_line}"
        with self._rows() as rows:
            line, _ = next(islice(rows, row + 1, None))
        return f"line {line}"

    def blocks(self, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        for name in names:
            if self.header.count(name) > 1:
                raise InputError(
                    f"{self.path}, {self.place(None)}: column {name} is there {self.header.count(name)} times, "
                    "but must be unique"
                )
        places = [self.header.index(name) for name in names]
        header, some, last = True, False, b""
        with opened(self.path) as file:
            try:
                for text in _whole_rows(file):
                    last = text[-1:]
                    columns = [column.slice(header) for column in self._columns(text, places)]
                    header = False  # it was the first row that came
                    some = some or len(columns[0]) > 0
                    yield dict(zip(names, columns))
            except ValueError as error:  # pyarrow's are, and those of _whole_rows
                self._diagnose(error)
        if last == b",":
            self._diagnose(None)
        if not some:
            raise InputError(f"{self.path}: there is a header but no row")

    def _columns(self, text: bytes, places: Sequence[int]) -> list[pa.Array]:
        """The columns at ``places`` of whole rows, as text."""
        text.decode()  # pyarrow looks at the bytes only of the columns it converts
        if b"\0" in text:
            raise ValueError("a zero byte")
        names = [str(place) for place in range(len(self.header))]
        table = arrow_csv.read_csv(
            pa.BufferReader(text),
            read_options=arrow_csv.ReadOptions(block_size=len(text) + 1, column_names=names, use_threads=False),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=_blank_or_wrong),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=[names[place] for place in places],
                strings_can_be_null=False,
            ),
        )
        return [column.combine_chunks() for column in table.columns]

    def _diagnose(self, error: ValueError | None) -> None:
        """Raise an `InputError` with the line of what is wrong; where nothing is, return if nothing was reported."""
        with self._rows() as rows:
            row, line = self.header, self.header_line
            for line, row in rows:
                if len(row) != len(self.header):
                    raise InputError(
                        f"{self.path}, line {line}: {shown(','.join(row))} has {len(row)} cells, "
                        f"but the header has {len(self.header)} columns"
                    )
        if error is not None:
            raise InputError(f"{self.path}: cannot be read as CSV ({shown(str(error), 100)})") from None
        if not row[-1].strip() and line > self.header_line:
            raise InputError(
                f"{self.path}, line {line}, column {self.header[-1]}: the file ends before the value, "
                "but each row must be whole"
            )
        return None

    @contextmanager
    def _rows(self) -> Iterator[Iterator[tuple[int, list[str]]]]:
        """The file's (line, cells) pairs by `csv`, header first, blank lines left out; what is wrong is refused."""
        line = 1

        def rows(text: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
            nonlocal line
            reader = csv.reader(text, strict=True)
            for row in reader:
                if any("\0" in cell for cell in row):
                    raise InputError(f"{self.path}, line {line}: holds a zero byte, but a text file (CSV) is expected")
                if len(row) > 1 or (row and row[0].strip()):
                    yield line, row
                line = reader.line_num + 1  # a quoted cell may span lines: a row counts from its first

        try:
            with opened(self.path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
                yield rows(text)
        except UnicodeDecodeError:
            raise InputError(
                f"{self.path}, line {self._undecodable()}: not UTF-8 text, but a text file (CSV) is expected"
            ) from None
        except csv.Error as error:
            raise InputError(f"{self.path}, line {line}: not well-formed CSV ({error})") from None

    def _undecodable(self) -> int:
        """First line that is not UTF-8; the decoder itself reads ahead and cannot tell."""
        with opened(self.path) as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return number
        return 1


def _whole_rows(file: BinaryIO) -> Iterator[bytes]:
    """The file in pieces of about `BLOCK_BYTES` that end where rows end; pieces of blank lines are left out."""
    rest = b""
    while data := file.read(BLOCK_BYTES):
        rest += data
        end = _end_of_rows(rest)
        if rest[:end].strip():
            yield rest[:end]
        rest = rest[end:]
        if len(rest) > LONGEST_ROW * BLOCK_BYTES:
            raise ValueError(f"a row longer than {len(rest):,} bytes")
    if _OPENING.search(_QUOTED.sub(b"", rest)):
        raise ValueError("a quotation mark does not close")
    if rest.strip():
        yield rest


def _end_of_rows(text: bytes) -> int:
    """Where the last whole row of ``text`` ends, which begins with a row; line breaks within quotes end no row."""
    if b'"' in text:
        text = _QUOTED.sub(lambda cell: b"_" * len(cell[0]), text)
        opening = _OPENING.search(text)
        text = text[: opening.start()] if opening else text
    return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1


def _blank_or_wrong(row: arrow_csv.InvalidRow) -> str:
    return "error" if row.text.replace('"', "").strip() else "skip"
