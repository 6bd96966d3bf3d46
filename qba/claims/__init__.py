"""The scorecard: every claim of the paper beside what the published datasets say about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qba.claims.evidence import CLOSE, NEEDS_DATA, NOT_REPRODUCED, REPRODUCED
from qba.claims import numbers, statements  # noqa: F401  (they fill CLAIMS)
from qba.claims.rows import CLAIMS, Results
from qba.errors import InputError
from qba.results import atomic_write, load

DATASETS = ("load_sweep", "sensitivity", "prediction_errors", "theory", "azure_standin", "promotion_delay")
STATUSES = (REPRODUCED, CLOSE, NOT_REPRODUCED, NEEDS_DATA)

Row = dict[str, Any]


def scorecard(results: Results) -> list[Row]:
    """Check every claim.

    Parameters
    ----------
    results : mapping of str to xarray.Dataset
        The published datasets by name, see `DATASETS`.

    Returns
    -------
    list of dict
        One entry a claim: id, kind, text, paper, reproduced, unit, standard_error, low, high (95 % interval),
        relative_deviation, combined_se_distance, status, note, comparisons (a statement's, see `Comparison`).
    """
    rows = []
    for claim in sorted(CLAIMS, key=lambda c: c.id):
        finding = asdict(claim.check(results))
        finding["comparisons"] = list(finding["comparisons"])  # as JSON gives it back
        both_numbers = isinstance(claim.paper, (int, float)) and isinstance(finding["reproduced"], float)
        deviation = finding["reproduced"] / claim.paper - 1 if both_numbers and claim.paper else None
        head = {"id": claim.id, "kind": claim.kind, "text": claim.text, "paper": claim.paper, "unit": claim.unit}
        rows.append(head | finding | {"relative_deviation": deviation})
    return rows


def counts(rows: list[Row]) -> dict[str, int]:
    """How many claims have each status."""
    return {status: sum(row["status"] == status for row in rows) for status in STATUSES}


def write_scorecard(folder: Path) -> list[Row]:
    """Judge the datasets in a results folder and write ``scorecard.json`` beside them."""
    rows = scorecard({name: load(folder / f"{name}.nc") for name in DATASETS})
    atomic_write(folder / "scorecard.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return rows


def read_scorecard(folder: str | Path) -> list[Row]:
    """The rows of a results folder's ``scorecard.json``.

    Raises
    ------
    InputError
        If the file is missing or not a scorecard; the message names it.
    """
    path = Path(folder) / "scorecard.json"
    try:
        rows = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; make reproduce writes the results") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error})") from error
    needed = {"id", "kind", "text", "paper", "reproduced", "status"}
    if not isinstance(rows, list) or not all(isinstance(row, dict) and needed <= row.keys() for row in rows):
        raise InputError(f"{path}: is not a scorecard; a list of rows with {', '.join(sorted(needed))} is needed")
    return rows


def number_text(value: float | str | None, digits: int = 3) -> str:
    """A number as the tables show it: three significant digits; texts unchanged; nothing for None."""
    if value is None or isinstance(value, str):
        return value or ""
    if value and abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def interval_text(low: float | None, high: float | None, digits: int = 3) -> str:
    """Both ends of an interval as the tables show them; nothing where there is none."""
    return "" if low is None or high is None else f"{number_text(low, digits)}…{number_text(high, digits)}"


def row_interval(row: Row) -> str:
    """The 95 % interval beside a row: of its number, or of the tightest of a statement's comparisons, with its name."""
    if row["kind"] == "number":
        return interval_text(row.get("low"), row.get("high"))
    tightest = (row.get("comparisons") or [{}])[0]
    ends = interval_text(tightest.get("low"), tightest.get("high"), 2)
    return f"{_named(tightest)}: {ends} {tightest['unit']}" if ends else ""


def comparison_text(comparison: dict[str, Any]) -> str:
    """One comparison of a statement at its tightest point: what, where, how large, and how many seeds decide it."""
    ends = interval_text(comparison["low"], comparison["high"], 2)
    value = f"{number_text(comparison['value'], 2)} {comparison['unit']}" + (f" [{ends}]" if ends else "")
    seeds = f", {comparison['seeds']:,} seeds decide it" if comparison["seeds"] else ""
    return f"{_named(comparison)}: {value}{seeds}"


def _named(comparison: dict[str, Any]) -> str:
    return comparison["text"] + (f" ({comparison['where']})" if comparison["where"] else "")


def markdown(rows: list[Row]) -> str:
    """The scorecard as a Markdown table, as the README shows it."""
    lines = [
        "| id | claim | paper | here | 95 % interval | distance | status |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        unit = f" {row['unit']}" if row["unit"] else ""
        deviation = "" if row["relative_deviation"] is None else f"{row['relative_deviation']:+.0%}"
        if row["combined_se_distance"] is not None:
            deviation += f", {row['combined_se_distance']:+.1f} SE"
        cells = [
            row["id"],
            row["text"],
            number_text(row["paper"]) + (unit if row["kind"] == "number" else ""),
            number_text(row["reproduced"]),
            row_interval(row),
            deviation,
            f"**{row['status']}**" if row["status"] != NEEDS_DATA else row["status"],
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def line(row: Row) -> str:
    """One row for a terminal."""
    ours, paper = number_text(row["reproduced"]), number_text(row["paper"])
    ends = interval_text(row.get("low"), row.get("high"))
    value = f": {ours}{f' [{ends}]' if ends else ''} (paper {paper}) {row['unit']}" if row["kind"] == "number" else ""
    return f"{row['id']}  {row['status']:<15}{row['text']}{value}".rstrip()


TABLE_BEGIN, TABLE_END = "<!-- scorecard: begin (generated by make reproduce) -->", "<!-- scorecard: end -->"


def insert_table(text: str, rows: list[Row]) -> str:
    """The text with the scorecard's table between its two marks."""
    before, begin, rest = text.partition(TABLE_BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not (begin and end):
        raise InputError(f"the text has no {begin and TABLE_END or TABLE_BEGIN!r} to put the scorecard at")
    summary = ", ".join(f"{count} {status}" for status, count in counts(rows).items())
    return f"{before}{TABLE_BEGIN}\n\n{len(rows)} claims: {summary}.\n\n{markdown(rows)}\n{TABLE_END}{after}"
