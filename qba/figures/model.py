"""The reduced model against the simulator: shape, error, and the steps from a queue to the engine.

The paper's own picture of the model is `qba.figures.paper.model_mean`.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import xarray as xr

from qba.figures.style import (
    COLUMN, HEIGHT, INK, MUTED, THIRD, data, label, log_axis, policy_color, policy_shape, select, title,
)  # fmt: skip
from qba.intervals import ESTIMATE

CLOSURE_STYLE = {
    "mixture": ("#e69f00", [1, 0]),
    "reclassify": ("#56b4e9", [6, 3]),
    "three_class": ("#cc79a7", [2, 2]),
    "conservation": ("#5e3c99", [8, 2, 2, 2]),
}
"""Colour and dash of each closure."""
PARALLELISM_TEXT = {"formula": "n by the formula", "matched": "n matched at one load"}
STROKES = alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolSize=260)
RATE_AXIS = {"scale": alt.Scale(zero=False, nice=False, padding=6)}


def shape(error: xr.Dataset) -> alt.VConcatChart:
    """Mean wait relative to FCFS against load: simulator with its 95 % band, and each closure; one panel a policy.

    error: as `qba.model_error.model_error` returns it. Where the promoted fraction is extrapolated lines are faint, and
    where the model has no steady state there are none.
    """
    policies = [str(p) for p in error.policy.values if p != "FCFS"]
    rows, highest = [], float(max(error.relative_wait.max(), error.model_relative_wait.max(), 1))
    for i, name in enumerate(error.parallelism.values):
        part = error.sel(parallelism=name, drop=True)
        panels = [
            _shape_panel(part, policy, highest, i == 0, PARALLELISM_TEXT[name], j == 0)
            for j, policy in enumerate(policies)
        ]
        rows.append(alt.hconcat(*panels, spacing=12))
    heading = title(
        "The shape: mean wait relative to FCFS, reduced model and simulator",
        f"black: simulator, {error.attrs['replications']} seeds, with 95 % confidence band; below 1: shorter than FCFS",
        "faint: promoted fraction beyond the measured loads; no line: no steady state in the model",
        width=110,
    )
    return alt.vconcat(*rows, spacing=14, title=heading)


def size(error: xr.Dataset, closure: str = "mixture") -> alt.HConcatChart:
    """Left: simulated over modelled mean wait, by choice of n. Right: the conserved sum of the simulator over FCFS's.

    error: as for `shape`.
    """
    chosen = select(error, "size", closure=closure)
    ratio = chosen.wait_ratio
    panels = [
        _ratio_panel(ratio.sel(parallelism=name, drop=True), ratio, PARALLELISM_TEXT[name])
        for name in ratio.parallelism.values
    ]
    heading = title(
        "The size, and the law behind it",
        f"left: simulated over modelled mean wait, {closure.replace('_', '-')} closure",
        "right: Σ ρ W over both classes in the simulator, relative to FCFS; a queue that conserves work has 1 for each",
        f"mean of {error.attrs['replications']} seeds, at the right with 95 % confidence band",
        width=130,
    )
    return alt.hconcat(*panels, _conserved_panel(error), spacing=16, title=heading)


def steps(study: xr.Dataset, closure: str = "mixture") -> alt.HConcatChart:
    """Left: simulated over modelled mean wait from a queue to the engine. Right: the conserved sum over FCFS's.

    study: as `qba.model_steps.model_steps` returns it; drawn at its highest utilisation.
    """
    chosen = select(study, "steps", closure=closure).isel(utilisation=-1)
    ratio = chosen.wait_ratio.rename("ratio")
    order = [str(name) for name in study.step.values]
    names = [str(name) for name in study.policy.values]
    y = alt.Y("step:N", sort=order, title=None)
    left = _dots(
        ratio.to_dataset(), names, y, alt.X("ratio:Q", title="Simulated over modelled wait", **log_axis(ratio))
    )
    conserved = xr.Dataset({e: chosen.conserved_tokens.sel(estimate=e, drop=True) for e in ESTIMATE})
    no_labels = alt.Y("step:N", sort=order, title=None, axis=alt.Axis(labels=False, ticks=False))
    x = alt.X("value:Q", title=["Token-weighted mean wait,", "relative to FCFS"], scale=alt.Scale(zero=False))
    right = _dots(conserved, names, no_labels, x, interval=True)
    heading = title(
        "From a queue to the engine: where the model breaks",
        f"each engine at {float(chosen.utilisation):.0%} of its own capacity; {study.attrs['replications']} seeds of "
        f"{study.attrs['horizon_s']:g} s; right: with 95 % interval",
        f"left: {closure.replace('_', '-')} closure, with the promoted fractions of the same runs",
        width=110,
    )
    return alt.hconcat(left, right, spacing=16, title=heading)


def _shape_panel(error: xr.Dataset, policy: str, highest: float, top: bool, row: str, leftmost: bool) -> alt.LayerChart:
    part = error.sel(policy=policy, drop=True)
    both = xr.Dataset({"value": part.model_relative_wait, "extrapolated": part.extrapolated})
    lines = both.reset_coords(drop=True).to_dataframe().dropna().reset_index()
    simulated = xr.Dataset({e: part.relative_wait.sel(estimate=e, drop=True) for e in ESTIMATE}).reset_coords(drop=True)
    y: dict[str, Any] = {"title": [row, "Mean wait over FCFS's"] if leftmost else None}
    y["scale"] = alt.Scale(domain=[0.2, float(f"{1.05 * highest:.3g}")], nice=False, zero=False)
    if not leftmost:
        y["axis"] = alt.Axis(labels=False, ticks=False, domain=False)
    x = alt.X("rate:Q", title=None if top else label(error.rate), **RATE_AXIS)
    fcfs = alt.Chart(data({"one": [1.0]})).mark_rule(color=MUTED, strokeDash=[1, 3]).encode(alt.Y("one:Q", **y))
    base = alt.Chart(data(simulated.drop_attrs())).encode(x)
    band = base.mark_area(opacity=0.15, color=INK).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    line = base.mark_line(color=INK, strokeWidth=2.4).encode(alt.Y("value:Q", **y))
    domain = [str(name) for name in error.closure.values]
    styles = [CLOSURE_STYLE.get(name, (MUTED, [1, 0])) for name in domain]
    closures = (
        alt.Chart(data(lines.to_dict("list")))
        .mark_line(strokeWidth=1.6)
        .encode(
            x,
            alt.Y("value:Q", **y),
            alt.Color("closure:N", scale=alt.Scale(domain=domain, range=[s[0] for s in styles]), legend=STROKES),
            alt.StrokeDash("closure:N", scale=alt.Scale(domain=domain, range=[s[1] for s in styles]), legend=STROKES),
            tooltip=["closure:N", "rate:Q", alt.Tooltip("value:Q", format=".2f")],
        )
    )
    measured = closures.transform_filter("!datum.extrapolated")
    heading = alt.TitleParams(policy, fontSize=11, fontWeight="normal", anchor="middle", offset=4)
    faint = closures.mark_line(strokeWidth=1.6, opacity=0.4)
    panel = alt.layer(fcfs, band, faint, measured, line)
    return panel.properties(width=THIRD, height=150, title=heading if top else "")


def _ratio_panel(ratio: xr.DataArray, all_ratios: xr.DataArray, text: str) -> alt.LayerChart:
    names = [str(name) for name in ratio.policy.values]
    table = ratio.reset_coords(drop=True).rename("ratio").to_dataframe().dropna().reset_index()
    y = {"title": label(ratio), **log_axis(xr.concat([all_ratios, xr.ones_like(all_ratios)], "one"))}
    base = alt.Chart(data(table.to_dict("list"))).encode(
        alt.X("rate:Q", title=label(ratio.rate), **_domain(ratio.rate)), alt.Y("ratio:Q", **y), policy_color(names)
    )
    point = base.mark_point().encode(policy_shape(names), tooltip=["policy:N", "rate:Q", "ratio:Q"])
    return _panel(alt.layer(base.mark_line(), point), text)


def _conserved_panel(error: xr.Dataset) -> alt.LayerChart:
    names = [str(name) for name in error.policy.values]
    table = xr.Dataset({e: error.conserved.sel(estimate=e, drop=True) for e in ESTIMATE}).reset_coords(drop=True)
    y = {"title": "Σ ρ W over FCFS's", "scale": alt.Scale(zero=False)}
    base = alt.Chart(data(table.drop_attrs())).encode(
        alt.X("rate:Q", title=label(error.rate), **_domain(error.rate)), policy_color(names)
    )
    band = base.mark_area(opacity=0.13).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    point = base.mark_point().encode(alt.Y("value:Q", **y), policy_shape(names))
    return _panel(alt.layer(band, base.mark_line().encode(alt.Y("value:Q", **y)), point), "simulator")


def _domain(rate: xr.DataArray) -> dict[str, Any]:
    """The same scale in every panel, also where some loads have no value."""
    low, high = float(rate.min()), float(rate.max())
    return {"scale": alt.Scale(domain=[low, high], nice=False, zero=False, padding=6)}


def _panel(chart: alt.LayerChart, text: str) -> alt.LayerChart:
    heading = alt.TitleParams(text, fontSize=11, fontWeight="normal", anchor="middle", offset=4)
    return chart.properties(width=THIRD, height=160, title=heading)


def _dots(table: xr.Dataset, names: list[str], y: alt.Y, x: alt.X, interval: bool = False) -> alt.LayerChart:
    """One row a step, the policies beside each other, and a line at 1."""
    columns = table.reset_coords(drop=True).drop_attrs()
    offset = alt.YOffset("policy:N", sort=names)
    base = alt.Chart(data(columns)).encode(y, offset, policy_color(names))
    rule = alt.Chart(data({"one": [1.0]})).mark_rule(color=MUTED, strokeDash=[1, 3]).encode(alt.X("one:Q"))
    layers = [rule, base.mark_point().encode(x, policy_shape(names))]
    if interval:
        layers.insert(1, base.mark_rule().encode(alt.X("low:Q"), alt.X2("high:Q")))
    return alt.layer(*layers).properties(width=COLUMN if not interval else THIRD, height=HEIGHT)
