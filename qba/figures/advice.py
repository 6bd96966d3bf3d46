"""A trace of one's own as pictures: its rate and lengths, the policies on it, the frontier of settings, the capacity."""

from __future__ import annotations

import altair as alt
import numpy as np
import xarray as xr

from qba.advice.measures import measure, objective
from qba.figures.style import (
    INK, MUTED, data, label, log_axis, policy_color, policy_shape, policy_styles, title,
)  # fmt: skip
from qba.intervals import ESTIMATE
from qba.requests import Requests

PANEL, TALL = 250, 170
SHOWN = ("mean", "p99_short", "p99_long", "ttft_p99")
POINTS = 120
"""Points of a curve."""
BASELINES = ("FCFS", "PSF")


def trace(about: xr.Dataset, requests: Requests) -> alt.HConcatChart:
    """A trace: its rate over time, and how its lengths are distributed.

    about: as `qba.describe` returns it.
    """
    axis = {"title": label(about["slice"]), "scale": alt.Scale(nice=False)}
    rate = alt.Chart(data({"time": about["slice"].values, "rate": about.rate_course.values}))
    rate = rate.mark_line(interpolate="step", color=INK).encode(
        alt.X("time:Q", **axis), alt.Y("rate:Q", title=label(about.rate_course), scale=alt.Scale(zero=True))
    )
    names = {"prompt": requests.prompt_tokens, "response": requests.response_tokens}
    top = max(int(tokens.max()) for tokens in names.values())
    at = np.unique(np.rint(np.geomspace(1, top, POINTS)))
    columns: dict[str, list] = {"kind": [], "tokens": [], "share": []}
    for name, tokens in names.items():
        columns["kind"] += [name] * len(at)
        columns["tokens"] += list(at)
        columns["share"] += list(np.searchsorted(np.sort(tokens), at, side="right") / len(tokens))
    x = {"title": "Length (tokens)", **log_axis(xr.DataArray([1.0, *at]))}
    lengths = alt.Chart(data(columns)).mark_line(interpolate="step-after")
    lengths = lengths.encode(
        alt.X("tokens:Q", **x),
        alt.Y("share:Q", title="Requests up to this length", axis=alt.Axis(format="%")),
        alt.Color("kind:N", scale=alt.Scale(domain=list(names), range=["#56b4e9", "#e69f00"])),
    )
    heading = title(
        f"{int(about.requests):,} requests",
        f"{about.rate.item():.3g} requests/s; squared coefficient of variation of the gaps "
        f"{about.interarrival_scv.item():.2f}; rank correlation of prompt and response {about.rank_correlation.item():.2f}",
        width=130,
    )
    return alt.hconcat(
        *(panel.properties(width=PANEL, height=TALL) for panel in (rate, lengths)), spacing=30, title=heading
    )


def comparison(study: xr.Dataset) -> alt.HConcatChart:
    """Policies on one trace: waits by class and time to first token, with intervals. study: as `qba.compare` gives it."""
    names = list(policy_styles(study.policy.values))
    panels = []
    for i, name in enumerate(SHOWN):
        values = study[measure(name).variable]
        table = xr.Dataset({end: values.sel(estimate=end, drop=True) for end in ESTIMATE}).drop_attrs()
        x = {"title": label(values, 30), **_from_zero(values)}
        y = alt.Y(
            "policy:N",
            sort=names,
            title=None,
            axis=alt.Axis(grid=False, domain=False, ticks=False, labels=i == 0, labelFontSize=11),
        )
        base = alt.Chart(data(table)).encode(y, policy_color(names, legend=None))
        rule = base.mark_rule(strokeWidth=1.6).encode(alt.X("low:Q", **x), alt.X2("high:Q"))
        point = base.mark_point(size=70).encode(alt.X("value:Q", **x), policy_shape(names, legend=None))
        text = base.mark_text(dy=-11, fontSize=10).encode(
            alt.X("value:Q", **x), text=alt.Text("value:Q", format=",.3~r")
        )
        panels.append(alt.layer(rule, point, text).properties(width=150, height=36 * len(names) + 20))
    heading = title(
        "Policies on this trace",
        f"{study.attrs['requests']:,} requests; 95 % intervals by windows of the trace",
        width=110,
    )
    return alt.hconcat(*panels, spacing=18, title=heading)


def frontier(study: xr.Dataset) -> alt.LayerChart:
    """What a search found: the objective against the (first) bound's measure, held-out windows. study: of `qba.tune`."""
    wanted = objective(study.attrs["objective"])
    goal = wanted.measure
    other = wanted.bounds[0].measure if wanted.bounds else goal
    held = study.sel(part="held out", estimate="value", drop=True)
    names = list(policy_styles(dict.fromkeys(study.policy.values)))
    table = {
        "policy": study.policy.values, "k": study.quota.values, "gamma": study.aging_quantile.values,
        "x": held[other.variable].values, "y": held[goal.variable].values, "best": study["rank"].values == 0,
    }  # fmt: skip
    axes = {
        "x": alt.X("x:Q", title=label(held[other.variable], 50), **log_axis(held[other.variable])),
        "y": alt.Y("y:Q", title=label(held[goal.variable]), **log_axis(held[goal.variable])),
    }
    base = alt.Chart(data(table))
    lines = base.transform_filter("datum.policy == 'QBA'").mark_line(strokeWidth=0.8, opacity=0.5)
    lines = lines.encode(axes["x"], axes["y"], policy_color(names), detail="k:Q", order="gamma:Q")
    tips = ["policy:N", "k:Q", "gamma:Q", *(alt.Tooltip(f"{axis}:Q", format=".3g") for axis in "xy")]
    points = base.transform_filter(f"indexof({list(BASELINES)}, datum.policy) < 0").mark_point(size=26)
    points = points.encode(axes["x"], axes["y"], policy_color(names), policy_shape(names), tooltip=tips)
    plain = base.transform_filter(f"indexof({list(BASELINES)}, datum.policy) >= 0").mark_point(
        size=110, stroke="white", strokeWidth=1
    )
    plain = plain.encode(axes["x"], axes["y"], policy_color(names), policy_shape(names), tooltip=tips)
    layers = [lines, points, plain]
    best = base.transform_filter("datum.best")
    layers.append(
        best.mark_point(size=190, strokeWidth=1.8, filled=False, color=INK, shape="circle").encode(axes["x"], axes["y"])
    )
    says = (
        "datum.policy + (isValid(datum.k) ? ' k=' + datum.k : '') + (isValid(datum.gamma) ? ' γ=' + datum.gamma : '')"
    )
    said = best.transform_calculate(text=says).encode(axes["x"], axes["y"], text="text:N")
    beside = {"align": "left", "dx": 12, "dy": -8, "fontSize": 11}
    layers += [said.mark_text(**beside, stroke="white", strokeWidth=4), said.mark_text(**beside)]
    if wanted.bounds:
        limit = alt.Chart(data({"x": [wanted.bounds[0].limit]}))
        layers.append(limit.mark_rule(strokeDash=[4, 3], color=MUTED).encode(axes["x"]))
    heading = title(
        str(wanted), "each mark a setting, on the held-out windows; lines join equal k; ring: the one chosen",
        "dashed: the bound" if wanted.bounds else "",
    )  # fmt: skip
    return alt.layer(*layers).properties(width=380, height=280, title=heading)


def capacities(study: xr.Dataset) -> alt.LayerChart:
    """A measure against the rate, and where it crosses its bound. study: as `qba.capacity` returns it."""
    [name] = [name for name, v in study.data_vars.items() if "rate" in v.dims]
    values = study[name]
    limit = float(study.attrs["slo"].rpartition(" ")[2])
    names = list(policy_styles(study.policy.values))
    table = xr.Dataset({end: values.sel(estimate=end, drop=True) for end in ESTIMATE}).drop_attrs()
    floor = max(limit / 100, 1e-3)
    table = table.clip(min=floor)
    y = {"title": label(values), **log_axis(table)}
    base = alt.Chart(data(table)).encode(
        alt.X("rate:Q", title=label(study.rate), scale=alt.Scale(zero=False, nice=False, padding=6)),
        policy_color(names),
    )
    band = base.mark_area(opacity=0.13).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    line = base.mark_line().encode(alt.Y("value:Q", **y))
    point = base.mark_point().encode(alt.Y("value:Q", **y), policy_shape(names))
    rule = alt.Chart(data({"limit": [limit]})).mark_rule(strokeDash=[4, 3], color=MUTED).encode(alt.Y("limit:Q", **y))
    found = study.sustained_rate.sel(estimate="value", drop=True)
    crossing = xr.Dataset({"x": found.where(np.isfinite(found) & (found > 0))}).drop_attrs().assign(limit=limit)
    drop = alt.Chart(data(crossing)).mark_rule(strokeWidth=1.4).encode(alt.X("x:Q"), policy_color(names))
    heading = title(
        study.attrs["slo"] + " s", "dashed: the bound; upright: the highest rate that keeps it; 95 % bands by windows"
    )
    return alt.layer(band, rule, drop, line, point).properties(width=380, height=240, title=heading)


def _from_zero(values: xr.DataArray) -> dict:
    top = float(np.nanmax(values.values)) if np.isfinite(values.values).any() else 1.0
    return {"scale": alt.Scale(domain=[0, float(f"{1.08 * top:.3g}")], nice=False), "axis": alt.Axis(tickCount=4)}
