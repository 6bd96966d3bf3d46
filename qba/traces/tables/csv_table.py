"""CSV, block by block.

pyarrow splits the text, some 20 times faster than Python's `csv`; it was chosen by a measurement over polars and DuckDB
because it is as quick as the quicker of them, reads from a Python file, so that every byte passes our own checks, and
refuses rows of another length. `csv` then finds the line where something is wrong: it counts them exactly.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

import pyarrow as pa
from pyarrow import csv as arrow_csv

from qba.errors import InputError
from qba.traces.tables.text import opened, shown

BLOCK_BYTES = 4 << 20
"""Text handed over at a time: larger blocks are no quicker. No row may be longer."""


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
        numbered = {name: str(self.header.index(name)) for name in names}
        some = False
        with opened(self.path) as file:
            checked = _Checked(file)
            try:
                # The header is the first row that comes.
                for number, batch in enumerate(self._batches(checked, list(numbered.values()))):
                    block = batch.slice(1) if not number else batch
                    some = some or bool(block.num_rows)
                    yield {name: block.column(numbered[name]) for name in names}
            except ValueError as error:  # pyarrow's are, and those of _Checked
                self._diagnose(error)
        if checked.quotes % 2 or checked.last == b",":
            self._diagnose(None)
        if not some:
            raise InputError(f"{self.path}: there is a header but no row")

    def _batches(self, file: _Checked, included: list[str]) -> Iterator[pa.RecordBatch]:
        everything = [str(place) for place in range(len(self.header))]
        yield from arrow_csv.open_csv(
            pa.PythonFile(file, "r"),
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES, column_names=everything),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=_blank_or_wrong),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(everything, pa.string()), include_columns=included, strings_can_be_null=False
            ),
        )

    def _diagnose(self, error: ValueError | None) -> NoReturn | None:
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
            reason = str(error).partition("\n")[0]
            raise InputError(f"{self.path}: cannot be read as CSV ({reason})") from None
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


class _Checked(io.RawIOBase):
    """A file that refuses zero bytes and what is not UTF-8, and remembers what pyarrow does not mind.

    Attributes
    ----------
    quotes : int
        Quotation marks so far; an odd number in all may be one that does not close.
    last : bytes
        The last byte so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.quotes = 0
        self.last = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.decoder.decode(data, final=not data)
        if b"\0" in data:
            raise ValueError("a zero byte")
        self.quotes += data.count(b'"')
        self.last = data[-1:] or self.last
        return data


def _blank_or_wrong(row: arrow_csv.InvalidRow) -> str:
    return "error" if row.text.strip(' \t"') else "skip"
