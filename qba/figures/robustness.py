"""Claims against readings of the paper: one heat map of verdicts."""

from __future__ import annotations

import altair as alt
import numpy as np
import xarray as xr

from qba.claims.evidence import GRADES
from qba.figures.ratios import STATUS_STYLE
from qba.figures.style import data, title

CELL = 14
MARKS = ("", "~", "✕", "")
"""Beside the colour, for readers who do not see it."""
FILLS = (*(STATUS_STYLE[grade][0] for grade in GRADES), "#ececec")
NAMES = (*GRADES, "not judged")
PANELS = {
    "default": "the default workload, or the reading's own",
    "refitted": "mean lengths fitted anew under the reading",
}


def heat_map(study: xr.Dataset) -> alt.VConcatChart:
    """Verdicts, claims across and readings down: with the default workload, and with one fitted to the reading.

    study: as `qba.robustness.robustness_study` returns it.
    """
    ids = [str(id) for id in study.claim.values]
    panels = []
    for name, text in PANELS.items():
        part = study.sel(workload=name, drop=True)
        part = part.isel(reading=np.flatnonzero(part.rms.notnull()))
        if part.reading.size:
            panels.append(_panel(part, ids, text))
    attrs = study.attrs
    heading = title(
        "Which claims hang on a reading",
        f"{attrs['seeds']} seeds, {attrs['windows']} windows; N18 to N26 and S22 are graded on a stand-in for the trace",
        "in brackets: root-mean-square log error over N01 to N15",
        width=130,
    )
    return alt.vconcat(*panels, spacing=16, title=heading)


def _panel(part: xr.Dataset, ids: list[str], text: str) -> alt.LayerChart:
    readings = [f"{name}  ({rms:.2f})" for name, rms in zip(part.reading.values, part.rms.values)]
    code = part.verdict.values
    table = {
        "reading": np.repeat(readings, len(ids)),
        "claim": np.tile(ids, len(readings)),
        "verdict": [NAMES[c] for c in code.ravel()],
        "mark": [MARKS[c] for c in code.ravel()],
        "value": part.value.values.ravel(),
    }
    base = alt.Chart(data(table)).encode(
        alt.X("claim:N", sort=ids, title=None, axis=alt.Axis(orient="top", labelAngle=-90, grid=False, domain=False, ticks=False)),
        alt.Y("reading:N", sort=readings, title=None, axis=alt.Axis(labelLimit=230, grid=False, domain=False, ticks=False)),
    )  # fmt: skip
    cells = base.mark_rect(stroke="white", strokeWidth=1).encode(
        alt.Color("verdict:N", scale=alt.Scale(domain=list(NAMES), range=list(FILLS))),
        tooltip=["reading:N", "claim:N", "verdict:N", alt.Tooltip("value:Q", format=".3g")],
    )
    marks = base.mark_text(fontSize=9, color="white").encode(alt.Text("mark:N"))
    return alt.layer(cells, marks).properties(
        width=alt.Step(CELL), height=alt.Step(CELL), title=alt.TitleParams(text, fontWeight="normal", fontSize=11)
    )
