"""Parquet, block by block, as the text that a CSV file would have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from qba.errors import InputError

BLOCK_ROWS = 200_000
"""Rows handed over at a time."""


class ParquetTable:
    """A Parquet file.

    Raises
    ------
    InputError
        If the file is damaged, holds no row, or a column that is needed is not numbers, times or text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with parquet.ParquetFile(path) as file:
                self.header = file.schema_arrow.names
                self.rows = file.metadata.num_rows
        except (pa.ArrowException, OSError):
            raise self._damaged() from None
        if not self.rows:
            raise InputError(f"{path}: there are columns but no row")

    def place(self, row: int | None) -> str:
        """Data row ``row`` (from 0) as a person counts; None for the columns' names."""
        return "schema" if row is None else f"row {row + 1}"

    def blocks(self, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        try:
            with parquet.ParquetFile(self.path) as file:
                for batch in file.iter_batches(BLOCK_ROWS, columns=list(names)):
                    yield {name: self._text(name, batch.column(name)) for name in names}
        except (pa.ArrowException, OSError):
            raise self._damaged() from None

    def _text(self, name: str, column: pa.Array) -> pa.Array:
        kind = column.type
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        if zoned:
            column = column.view(pa.timestamp(kind.unit))  # what is stored is UTC, whatever the zone
        try:
            text = pc.cast(column, pa.string())
            return pc.fill_null(pc.binary_join_element_wise(text, "Z", "") if zoned else text, "")
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            raise InputError(
                f"{self.path}, column {name}: holds {kind}, but it must hold numbers, times or text"
            ) from None

    def _damaged(self) -> InputError:
        return InputError(f"{self.path}: the Parquet file is damaged or cut off")
