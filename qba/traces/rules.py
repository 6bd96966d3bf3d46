"""The rules of `qba.traces.readers`, applied block by block: which rows are kept, dropped, put in order or refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qba.errors import InputError
from qba.requests import Requests
from qba.traces.clocks import Clock
from qba.traces.formats import Format
from qba.traces.tables import Table
from qba.traces.tables.text import shown
from qba.traces.values import numbers

MOST_TOKENS = 10_000_000
"""Longer prompts and responses are taken for mistakes: no model has such a context."""

OUT_OF_ORDER = "rows out of order"
HEADER = "header repeated"
FAILED = "request failed"


class Reading:
    """The kept rows of a file and the account of the others.

    Parameters
    ----------
    table : Table
        The file; it says where a row stands.
    form : Format
    clock : str, optional
        Instead of the format's own.
    strict : bool
        Refuse the first row that would be dropped or put elsewhere.
    """

    def __init__(self, table: Table, form: Format, clock: str | None, strict: bool) -> None:
        self.table = table
        self.path: Path = table.path
        self.form = form
        self.strict = strict
        self.clock = Clock(clock or form.clock)
        self.rows = 0
        self.counts: Counter[str] = Counter()
        self.kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.latest: int | float | None = None

    def add(self, block: dict[str, pa.Array]) -> None:
        """Take the next rows: columns of text of one length.

        Raises
        ------
        InputError
            At the first row that is refused.
        """
        form, findings = self.form, []
        size = len(block[form.arrival])
        repeated = np.logical_and.reduce([_equal(block[name], name) for name in form.columns])
        failed = ~_equal(block[form.failure], "") if form.failure in block else np.zeros(size, bool)
        read = np.flatnonzero(~(repeated | failed))
        drops = [
            (repeated, HEADER, form.arrival, "one header"),
            (failed & ~repeated, FAILED, form.failure, "no failures"),
        ]
        text = block if len(read) == size else {name: column.take(pa.array(read)) for name, column in block.items()}
        if len(read):
            arrivals, wrong = self.clock.read(text[form.arrival])
            findings += [(_among(read, rows, size), form.arrival, wanted) for rows, wanted in wrong]
            prompts, some = self._lengths("prompt", text[form.prompt], read, size, findings)
            responses, others = self._lengths("response", text[form.response], read, size, findings)
            drops += others + some
        keep = np.ones(size, bool)
        for rows, reason, name, wanted in drops:
            self.counts[reason] += int(np.count_nonzero(rows & keep))
            keep &= ~rows
            if self.strict:
                findings.append((rows, name, f"strict reading wants {wanted}"))
        if len(read):
            kept = keep[read]
            late = self._late(arrivals.values[kept], np.flatnonzero(keep), size)
            if self.strict:
                findings.append((late, form.arrival, "strict reading wants arrivals that never decrease"))
            self.kept.append((arrivals.values[kept], prompts[kept], responses[kept]))
        self._refuse(block, findings)
        self.rows += size

    def requests(self) -> tuple[Requests, np.datetime64 | None]:
        """All kept rows in order of arrival, and the wall-clock time of the first (see `Clock.start`).

        Raises
        ------
        InputError
            If no row is left.
        """
        if not any(len(part[0]) for part in self.kept):
            raise InputError(f"{self.path}: no row is left: {'; '.join(account(self.rows, self.counts))}")
        arrivals, prompts, responses = (np.concatenate(column) for column in zip(*self.kept))
        self.kept.clear()
        if self.counts[OUT_OF_ORDER]:
            order = np.argsort(arrivals, kind="stable")
            arrivals, prompts, responses = arrivals[order], prompts[order], responses[order]
        start = self.clock.start(arrivals[0].item())
        arrivals = (arrivals - arrivals[0]) / self.clock.ticks_per_second
        return Requests(arrival_s=arrivals, prompt_tokens=prompts, response_tokens=responses), start

    def _lengths(
        self, role: str, text: pa.Array, read: np.ndarray, size: int, findings: list
    ) -> tuple[np.ndarray, list]:
        """Whole tokens (0 where there are none), and the rows to drop; what is refused goes to ``findings``."""
        name = getattr(self.form, role)
        found = numbers(text)
        values = found.values
        wrong = found.bad | (values < 0)
        if values.dtype.kind == "f":
            wrong |= values != np.floor(values)
        findings.append((_among(read, wrong, size), name, "lengths must be whole numbers of tokens, not negative"))
        long = values > MOST_TOKENS
        drops = [
            ((values == 0) & ~found.missing & ~found.bad, f"{role} tokens 0", "at least 1 token"),
            (found.missing, f"{role} tokens missing", "a number of tokens"),
            (long, f"{role} tokens above {MOST_TOKENS:,}", f"at most {MOST_TOKENS:,} tokens"),
        ]
        if values.dtype.kind == "f":
            values = np.where(long | wrong, 0, values).astype(np.int64)
        return values, [(_among(read, rows, size), reason, name, wanted) for rows, reason, wanted in drops]

    def _late(self, arrivals: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
        """Which rows of the block arrive before an earlier row; ``rows`` are those with ``arrivals``."""
        if not len(arrivals):
            return np.zeros(size, bool)
        latest = np.maximum.accumulate(arrivals)
        if self.latest is not None:
            latest = np.maximum(latest, self.latest)  # whole numbers stay whole: a double has no room for nanoseconds
        late = arrivals < latest
        self.counts[OUT_OF_ORDER] += int(np.count_nonzero(late))
        self.latest = latest[-1].item()
        return _among(rows, late, size)

    def _refuse(self, block: dict[str, pa.Array], findings: list[tuple[np.ndarray, str, str]]) -> None:
        found = [(int(np.argmax(rows)), name, wanted) for rows, name, wanted in findings if rows.any()]
        if not found:
            return
        row, name, wanted = min(found, key=lambda finding: finding[0])  # at a tie the first column
        value = block[name][row].as_py().strip()
        got = shown(value) if value else "an empty cell"
        raise InputError(f"{self.path}, {self.table.place(self.rows + row)}, column {name}: {got}, but {wanted}")


def account(rows: int, counts: dict[str, int]) -> list[str]:
    """What became of the rows of a file that were not taken as they are, a line each for dropped and for moved ones."""
    dropped = {reason: count for reason, count in counts.items() if count and reason != OUT_OF_ORDER}
    lines = []
    if dropped:
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in dropped.items())
        if len(dropped) == 1:
            (reasons,) = dropped
        lines.append(f"{sum(dropped.values()):,} of {rows:,} rows dropped: {reasons}")
    if counts.get(OUT_OF_ORDER):
        lines.append(f"{counts[OUT_OF_ORDER]:,} of {rows:,} {OUT_OF_ORDER}: sorted by arrival")
    return lines


def _equal(column: pa.Array, text: str) -> np.ndarray:
    return pc.equal(column, text).to_numpy(zero_copy_only=False)


def _among(places: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """Bool array over all ``size`` rows of the block, from one over those at ``places``."""
    if len(places) == size:
        return rows
    among = np.zeros(size, bool)
    among[places[rows]] = True
    return among
