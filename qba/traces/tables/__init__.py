"""Files as tables of text: CSV, JSON and Parquet, read block by block.

A table has a ``path``, a ``header`` (column names), ``blocks(names)``, which yields the named columns as pyarrow arrays of
text without nulls ("" where a value is missing), and ``place(row)``, which says where in the file a row stands. What
the text means is not decided here.
"""

from __future__ import annotations

from pathlib import Path

from qba.errors import InputError
from qba.traces.tables.csv_table import CsvTable
from qba.traces.tables.json_table import JsonTable
from qba.traces.tables.parquet_table import ParquetTable
from qba.traces.tables.text import opened

Table = CsvTable | JsonTable | ParquetTable

_BLANK = b" \t\r\n\xef\xbb\xbf"


def open_table(path: str | Path) -> Table:
    """Open a file as what it holds, whatever its name: Parquet, JSON (lines or one object), else CSV; gzip or not.

    Raises
    ------
    InputError
        If there is no such file, or it is a directory, empty, damaged or a JSON array.
    """
    path = Path(path)
    with opened(path) as file:
        start = file.read(4)
        if start == b"PAR1":
            return ParquetTable(path)
        while start and not start.strip(_BLANK):
            start = file.read(4096)
    first = start.lstrip(_BLANK)[:1]
    if first == b"{":
        return JsonTable(path)
    if first == b"[":
        raise InputError(f"{path}: starts with '[', but JSON must have one object a line (or be one object of lists)")
    return CsvTable(path)
