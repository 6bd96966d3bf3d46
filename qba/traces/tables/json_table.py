"""JSON: one object a line, or one object that has a list for each quantity. Numbers stay text, digit by digit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from qba.errors import InputError
from qba.traces.tables.text import opened, shown

BLOCK_ROWS = 100_000
"""Rows handed over at a time."""

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


class JsonTable:
    """A file of JSON objects. Byte-order mark, blank lines and no final newline are all right.

    Lines are read one by one; a single object of lists is read whole.

    Raises
    ------
    InputError
        Here if the first object is not well formed; in `blocks` if a line is not an object of JSON in UTF-8, or lists have
        different lengths.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.header_line, self.first = next(self._objects())
        except InputError:
            # Perhaps one object that spans lines; if not, the line with the mistake is the better message.
            whole = self._whole()
            if whole is None:
                raise
            self.header_line, self.first = 1, whole
        self.header = list(self.first)
        self.lists = False

    def place(self, row: int | None) -> str:
        """Where data row ``row`` (from 0) stands; None for the object that told the keys."""
        if self.lists and row is not None:
            return f"request {row + 1}"
        line = self.header_line if row is None else next(islice(self._objects(), row, None))[0]
        return f"line {line}"

    def blocks(self, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        self.lists = all(isinstance(self.first[name], list) for name in names)
        if self.lists:
            yield self._columns(names)
            return
        objects = (found for _, found in self._objects())
        while some := list(islice(objects, BLOCK_ROWS)):
            yield {name: _array([found.get(name) for found in some]) for name in names}

    def _columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        size = len(self.first[names[0]])
        for name in names:
            if len(self.first[name]) != size:
                raise InputError(
                    f"{self.path}, column {name}: {len(self.first[name]):,} values, but {names[0]} has {size:,}, "
                    "and both must have one a request"
                )
        if not size:
            raise InputError(f"{self.path}: {names[0]} is an empty list, but at least one request is needed")
        return {name: _array(self.first[name]) for name in names}

    def _objects(self) -> Iterator[tuple[int, dict]]:
        with opened(self.path) as file:
            for number, line in enumerate(file, start=1):
                text = self._decoded(number, line).strip()
                if text:
                    yield number, self._parsed(number, text)

    def _decoded(self, number: int, line: bytes) -> str:
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{self.path}, line {number}: not UTF-8 text, but JSON is expected") from None

    def _parsed(self, number: int, text: str) -> dict:
        try:
            found = _DECODER.decode(text)
        except ValueError as error:
            reason = getattr(error, "msg", error)
            raise InputError(f"{self.path}, line {number}: {shown(text)} is not well-formed JSON ({reason})") from None
        if not isinstance(found, dict):
            raise InputError(f"{self.path}, line {number}: {shown(text)}, but each line must be a JSON object")
        return found

    def _whole(self) -> dict | None:
        with opened(self.path) as file:
            try:
                found = _DECODER.decode(file.read().decode("utf-8-sig"))
            except ValueError:
                return None
        return found if isinstance(found, dict) else None


def _array(values: list) -> pa.Array:
    return pa.array([value if type(value) is str else _text(value) for value in values], pa.string())


def _text(value: object) -> str:
    return "" if value is None else json.dumps(value)
