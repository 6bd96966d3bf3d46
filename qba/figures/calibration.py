"""The search for the lost workload: residuals of each family, profiles, and predictions of rows not shown."""

from __future__ import annotations

import altair as alt
import numpy as np
import xarray as xr

from qba.figures.style import COLUMN, MUTED, data, title

FAMILY_COLORS = ("#404040", "#0072b2", "#56b4e9", "#8c6d31", "#cc79a7", "#e69f00", "#d55e00", "#009e73", "#999999")
HELD_PANELS = {"horizon_s_held": "Horizon, held (s)", "prompt_cv_held": "Coefficient of variation of prompts, held"}


def residuals(study: xr.Dataset) -> alt.LayerChart:
    """Ours over the paper's, in combined standard errors, row by row, one mark a family; two zones: 1 and 2 errors.

    study: as `qba.calibrate.identify.calibration_study` returns it.
    """
    distance = (study.log_error / study.row_error).rename("distance").drop_attrs()
    names = [str(name) for name in study.family.values]
    base = alt.Chart(data(distance.to_dataset())).encode(
        alt.X("row:N", sort=list(study.row.values), title=None, axis=alt.Axis(labelAngle=0)),
        alt.Y("distance:Q", title="Distance from the paper (standard errors)"),
        alt.Color(
            "family:N", scale=alt.Scale(domain=names, range=list(FAMILY_COLORS[: len(names)])),
            legend=alt.Legend(columns=2, labelLimit=260),
        ),
        alt.Shape("family:N", scale=alt.Scale(domain=names), legend=None),
    )  # fmt: skip
    marks = base.mark_point(size=34, filled=False, strokeWidth=1.4).encode(
        xOffset=alt.XOffset("family:N", sort=names),
        tooltip=["family:N", "row:N", alt.Tooltip("distance:Q", format=".2f")],
    )
    zones = [_zone(2, "#f3f3f3"), _zone(1, "#e3e3e3")]
    return alt.layer(*zones, marks).properties(
        width=2 * COLUMN,
        height=230,
        title=title(
            "What each family leaves over",
            f"ours over the paper's on {study.attrs['fresh_seeds']} fresh seeds, as logarithms, in combined standard errors",
            "zones: 1 and 2 standard errors; the rows share their seeds, so they err together",
            width=120,
        ),
    )


def profiles(study: xr.Dataset) -> alt.HConcatChart:
    """How much worse the best fit gets with one parameter held: what the paper's numbers pin down.

    study: as `qba.calibrate.identify.calibration_study` returns it, with profiles.
    """
    panels = []
    for dim, text in HELD_PANELS.items():
        if dim not in study.dims:
            continue
        table = study[[f"{dim}_cost", f"{dim}_rms"]].rename({f"{dim}_cost": "cost", f"{dim}_rms": "rms"}).drop_attrs()
        x = alt.X(f"{dim}:Q", title=text, scale=alt.Scale(zero=False, nice=False, padding=8))
        base = alt.Chart(data(table)).encode(x, alt.Y("cost:Q", title="Sum of squared residuals"))
        tips = [f"{dim}:Q", alt.Tooltip("cost:Q", format=".3g"), alt.Tooltip("rms:Q", format=".3f")]
        marks = base.mark_line(color="#0072b2") + base.mark_point(color="#0072b2").encode(tooltip=tips)
        panels.append(marks.properties(width=COLUMN, height=170))
    heading = title(
        "What is pinned down",
        f"{study.attrs['examined']}: one parameter held, the others fitted; residuals in standard errors",
        width=110,
    )
    return alt.hconcat(*panels, spacing=20, title=heading)


def hold_outs(study: xr.Dataset) -> alt.HConcatChart:
    """Rows that a fit was not shown beside those that it was: ours over the paper's, with two standard errors.

    study: as `qba.calibrate.identify.calibration_study` returns it.
    """
    ratio, error = study.held_out_log_error, study.held_out_row_error
    table = xr.Dataset(
        {
            "ratio": np.exp(ratio),
            "low": np.exp(ratio - 2 * error),
            "high": np.exp(ratio + 2 * error),
            "kind": xr.where(study.shown, "shown to the fit", "predicted"),
        }
    ).drop_attrs()
    kinds = alt.Scale(domain=["shown to the fit", "predicted"], range=["#9a9a9a", "#d55e00"])
    panels = []
    for i, name in enumerate(study.held_out.values):
        base = alt.Chart(data(table.sel(held_out=name, drop=True))).encode(
            alt.X("row:N", sort=list(study.row.values), title=None, axis=alt.Axis(labelAngle=-90)),
            alt.Color("kind:N", scale=kinds),
        )
        y = {"title": None if i else "Reproduced / paper", "scale": alt.Scale(zero=False)}
        whisker = base.mark_rule(strokeWidth=1.3).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
        tips = ["row:N", "kind:N", *(alt.Tooltip(f"{n}:Q", format=".3f") for n in ("ratio", "low", "high"))]
        point = base.mark_point(size=44).encode(alt.Y("ratio:Q", **y), tooltip=tips)
        one = alt.Chart(data({"one": [1.0]})).mark_rule(color=MUTED).encode(alt.Y("one:Q", **y))
        panels.append(
            alt.layer(one, whisker, point).properties(
                width=COLUMN, height=180, title=alt.TitleParams(f"without {name}")
            )
        )
    heading = title(
        "Does the fit predict what it was not shown?", f"{study.attrs['examined']}; whiskers: 2 standard errors"
    )
    return alt.hconcat(*panels, spacing=16, title=heading).resolve_scale(y="shared")


def _zone(half_width: float, color: str) -> alt.Chart:
    table = data({"from": [-half_width], "to": [half_width]})
    return alt.Chart(table).mark_rect(color=color).encode(alt.Y("from:Q"), alt.Y2("to:Q"))
