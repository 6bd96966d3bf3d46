"""How long and how many: waits against the horizon, and half-widths of intervals against the number of seeds."""

from __future__ import annotations

from typing import Any

import altair as alt
import xarray as xr

from qba.figures.style import MUTED, data, label, log_axis, policy_color, policy_shape, title
from qba.intervals import ESTIMATE
from qba.precision import PAIRINGS, PUBLISHED_S, WIDTH

PANEL, PANEL_HEIGHT = 122, 135
HORIZON_ROWS = {"wait_mean_s": "Mean wait (s)", "wait_p99_s": "P99 wait (s)"}
SEEDS_ROWS = {"wait_mean_s": "mean wait", "wait_p99_s": "P99 wait"}
QUANTITY_STYLE = {
    "mean": ("the mean", "#404040", [1, 0]),
    f"ratio to FCFS, {PAIRINGS[1]}": ("its ratio to FCFS, other seeds", "#e69f00", [5, 3]),
    f"ratio to FCFS, {PAIRINGS[0]}": ("its ratio to FCFS, same seeds", "#0072b2", [1, 0]),
}
"""Name, colour and dash of what an interval is of."""
STROKES = alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolSize=220)


def horizon(study: xr.Dataset) -> alt.VConcatChart:
    """Mean and P99 wait against the horizon, one panel a load, both axes logarithmic, with 95 % bands.

    study: as `qba.precision.horizon_study` returns it.
    """
    rows = [_horizon_row(study, name, text, first=i == 0) for i, (name, text) in enumerate(HORIZON_ROWS.items())]
    least, most = int(study.replications.min()), int(study.replications.max())
    seeds = f"{most} seeds" if least == most else f"{most} seeds, fewer at long horizons (at least {least})"
    capacity = study.capacity.sel(estimate="value")
    known = f"the engine carries {capacity.min():.1f} to {capacity.max():.1f} requests/s, by policy"
    heading = title(
        "How long: waits against the horizon",
        f"mean of {seeds}, with 95 % confidence band"
        + (f"; vertical line: {PUBLISHED_S} s, as in the other figures" if _published(study) else ""),
        f"dotted: in proportion to the horizon; {known if capacity.notnull().all() else 'no load is above capacity'}",
        width=130,
    )
    return alt.vconcat(*rows, spacing=14, title=heading)


def half_widths(study: xr.Dataset) -> alt.VConcatChart:
    """Half-width of 95 % intervals against the number of seeds: of each policy's mean, and of its ratio to FCFS's.

    study: as `qba.precision.seeds_study` returns it.
    """
    rows = [
        alt.hconcat(
            *(
                _half_width_panel(study, name, policy, top, leftmost=i == 0)
                for i, policy in enumerate(_compared(study))
            ),
            spacing=12,
        )
        for name, top in zip(SEEDS_ROWS, (True, False), strict=True)
    ]
    heading = title(
        "How many: precision against the number of seeds",
        "half of a 95 % interval, relative to the estimate: the mean over seeds, or a ratio to FCFS's mean",
        f"at {study.attrs['rate']:g} requests/s, from {study.attrs['replications']:,} seeds; dotted: {WIDTH:.0%}",
        width=110,
    )
    return alt.vconcat(*rows, spacing=14, title=heading)


def _compared(study: xr.Dataset) -> list[str]:
    return [str(name) for name in study.policy.values if name != "FCFS"]


def _horizon_row(study: xr.Dataset, variable: str, text: str, first: bool) -> alt.HConcatChart:
    """One statistic, one panel a load, all on one scale."""
    waits = study[variable]
    least, most = float(waits.sel(estimate="value").min()), float(waits.max())
    y = {"title": text, **log_axis(waits.clip(min=least / 2))}
    panels = [
        _horizon_panel(waits.sel(rate=rate), y, (least, most), f"{rate:g} requests/s" if first else "", leftmost=i == 0)
        for i, rate in enumerate(study.rate.values)
    ]
    return alt.hconcat(*panels, spacing=8)


def _horizon_panel(
    waits: xr.DataArray, y: dict[str, Any], ends: tuple[float, float], text: str, leftmost: bool
) -> alt.LayerChart:
    least, most = ends
    names = [str(name) for name in waits.policy.values]
    y = y if leftmost else y | {"title": None, "axis": _unlabelled(y)}
    columns = xr.Dataset({name: waits.sel(estimate=name, drop=True) for name in ESTIMATE}).drop_attrs()
    horizons = waits.horizon_s
    ticks = [h for h in (10, 100, 1000) if horizons.min() <= h <= horizons.max()]
    x = alt.X(
        "horizon_s:Q", title=None if text else "Horizon (s)", axis=alt.Axis(values=ticks, format="~g"),
        scale=alt.Scale(type="log", domain=[float(horizons.min()), float(horizons.max())], nice=False),
    )  # fmt: skip
    base = alt.Chart(data(columns.assign(low=columns.low.clip(min=least / 2)))).encode(x, policy_color(names))
    band = base.mark_area(opacity=0.13).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    line = base.mark_line().encode(alt.Y("value:Q", **y))
    point = base.mark_point(size=22).encode(
        alt.Y("value:Q", **y),
        policy_shape(names),
        tooltip=["policy:N", "horizon_s:Q", *(alt.Tooltip(f"{name}:Q", format=".3g") for name in ESTIMATE)],
    )
    published = alt.Chart(data({"horizon_s": [PUBLISHED_S]})).mark_rule(color=MUTED, strokeWidth=0.8).encode(x)
    start = float(columns.value.sel(policy="FCFS").isel(horizon_s=0))
    longest = min(float(horizons[-1]), float(horizons[0]) * most / start)  # where the guide leaves the panel
    guide = {"horizon_s": [float(horizons[0]), longest], "value": [start, start * longest / float(horizons[0])]}
    proportional = alt.Chart(data(guide)).mark_line(color=MUTED, strokeDash=[1, 3], strokeWidth=1.2)
    heading = alt.TitleParams(text, fontSize=11, fontWeight="normal", anchor="middle", offset=4)
    layers = [proportional.encode(x, alt.Y("value:Q", **y)), band, line, point]
    if _published(waits):
        layers.insert(0, published)
    return alt.layer(*layers).properties(width=PANEL, height=PANEL_HEIGHT, title=heading if text else "")


def _published(study: xr.Dataset | xr.DataArray) -> bool:
    return bool(study.horizon_s.min() <= PUBLISHED_S <= study.horizon_s.max())


def _half_width_panel(study: xr.Dataset, statistic: str, policy: str, top: bool, leftmost: bool) -> alt.LayerChart:
    values = study.half_width.sel(statistic=statistic, policy=policy, drop=True)
    names = {quantity: name for quantity, (name, _, _) in QUANTITY_STYLE.items()}
    colors, dashes = ([style[i] for style in QUANTITY_STYLE.values()] for i in (1, 2))
    table = values.assign_coords(quantity=[names[str(q)] for q in values.quantity.values]).rename("half_width")
    axis = log_axis(study.half_width.sel(statistic=list(SEEDS_ROWS)).dropna("policy"))
    axis.setdefault("axis", alt.Axis()).format = ".0%"
    y = {"title": f"Half-width, {SEEDS_ROWS[statistic]}", **axis}
    y = y if leftmost else y | {"title": None, "axis": _unlabelled(y)}
    counts = study.seeds
    ticks = [n for n in (10, 100, 1000) if counts.min() <= n <= counts.max()]
    x = alt.X(
        "seeds:Q", title=None if top else label(counts), axis=alt.Axis(values=ticks, format=","),
        scale=alt.Scale(type="log", domain=[int(counts.min()), int(counts.max())], nice=False),
    )  # fmt: skip
    domain = list(names.values())
    base = alt.Chart(data(table.to_dataset().drop_attrs())).encode(
        x,
        alt.Y("half_width:Q", **y),
        alt.Color("quantity:N", scale=alt.Scale(domain=domain, range=colors), legend=STROKES),
    )
    line = base.mark_line().encode(
        alt.StrokeDash("quantity:N", scale=alt.Scale(domain=domain, range=dashes), legend=STROKES)
    )
    point = base.mark_point(size=22).encode(
        tooltip=["quantity:N", "seeds:Q", alt.Tooltip("half_width:Q", format=".1%")]
    )
    goal = alt.Chart(data({"goal": [WIDTH]})).mark_rule(color=MUTED, strokeDash=[1, 3]).encode(alt.Y("goal:Q", **y))
    heading = alt.TitleParams(policy, fontSize=11, fontWeight="normal", anchor="middle", offset=4)
    return alt.layer(goal, line, point).properties(width=165, height=PANEL_HEIGHT, title=heading if top else "")


def _unlabelled(y: dict[str, Any]) -> alt.Axis:
    """The same grid without words, for panels right of the first."""
    return alt.Axis(values=y.get("axis", alt.Axis()).values, labels=False, ticks=False, domain=False)
