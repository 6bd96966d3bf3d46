"""The scorecard's numbers as a picture: reproduced over paper, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from qba.claims.evidence import CLOSE, NEARLY_WITHIN, NEEDS_DATA, NOT_REPRODUCED, REPRODUCED, WITHIN
from qba.figures.style import COLUMN, MUTED, data, title

STATUS_STYLE = {
    REPRODUCED: ("#0072b2", "circle"),
    CLOSE: ("#e69f00", "triangle-up"),
    NOT_REPRODUCED: ("#d55e00", "square"),
    NEEDS_DATA: ("#767676", "diamond"),
}
"""Colour and mark of each status."""


def scorecard(rows: Sequence[Mapping[str, Any]]) -> alt.LayerChart:
    """Reproduced over paper for each number of the scorecard, with its 95 % interval and the 15 % and 30 % zones.

    rows: as in scorecard.json. Statements, and numbers without a ratio (an interval, zero, nothing to compare), are not
    drawn; the subtitle names the latter.
    """
    numbers = [row for row in rows if row["kind"] == "number"]
    drawn = [row for row in numbers if _ratio(row) is not None]
    left_out = [row["id"] for row in numbers if _ratio(row) is None]
    ends = [sorted(row[end] / row["paper"] for end in ("low", "high")) if _has_interval(row) else () for row in drawn]
    ratio = [_ratio(row) for row in drawn]
    names = [f"{row['id']}  {row['text']}" for row in drawn]
    table = {
        "row": names,
        "ratio": ratio,
        "low": [pair[0] if pair else None for pair in ends],
        "high": [pair[1] if pair else None for pair in ends],
        "status": [row["status"] for row in drawn],
        "paper": [row["paper"] for row in drawn],
        "reproduced": [row["reproduced"] for row in drawn],
    }
    colors, shapes = zip(*STATUS_STYLE.values())
    x = {"title": "Reproduced / paper", "scale": alt.Scale(zero=False)}
    base = alt.Chart(data(table)).encode(
        alt.Y("row:N", sort=names, title=None, axis=alt.Axis(labelLimit=330, grid=False, ticks=False, domain=False)),
        alt.Color("status:N", scale=alt.Scale(domain=list(STATUS_STYLE), range=list(colors))),
    )
    whisker = base.mark_rule(strokeWidth=1.3).encode(alt.X("low:Q", **x), alt.X2("high:Q"))
    point = base.mark_point(size=50).encode(
        alt.X("ratio:Q", **x),
        alt.Shape("status:N", scale=alt.Scale(domain=list(STATUS_STYLE), range=list(shapes))),
        tooltip=["row:N", "paper:Q", "reproduced:Q", "status:N"]
        + [alt.Tooltip(f"{name}:Q", format=".3f") for name in ("ratio", "low", "high")],
    )
    one = alt.Chart(data({"one": [1.0]})).mark_rule(color=MUTED).encode(alt.X("one:Q", **x))
    zones = [_zone(NEARLY_WITHIN, "#f3f3f3", x), _zone(WITHIN, "#e3e3e3", x)]
    return alt.layer(*zones, one, whisker, point).properties(
        width=COLUMN,
        height=alt.Step(17),
        title=title(
            "Scorecard: the paper's numbers",
            f"whiskers: 95 % interval of ours; zones: within {100 * WITHIN:.0f} % and {100 * NEARLY_WITHIN:.0f} %",
            "W: mean wait; S99, L99: 99th percentile of true-short and of true-long waits",
            "needs data: the value of a stand-in for the paper's trace",
            f"without a ratio, so not drawn: {', '.join(left_out)}" if left_out else "",
            width=100,
            frame="bounds",
        ),
    )


def _zone(half_width: float, color: str, x: dict[str, Any]) -> alt.Chart:
    table = data({"from": [1 - half_width], "to": [1 + half_width]})
    return alt.Chart(table).mark_rect(color=color).encode(alt.X("from:Q", **x), alt.X2("to:Q"))


def _has_interval(row: Mapping[str, Any]) -> bool:
    return row.get("low") is not None and row.get("high") is not None


def _ratio(row: Mapping[str, Any]) -> float | None:
    paper, reproduced = row["paper"], row["reproduced"]
    for value in (paper, reproduced):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
    return reproduced / paper if paper else None
