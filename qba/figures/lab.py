"""The policy lab as pictures: who trades mean for tail and how well, and what the aging gate adds to a quota."""

from __future__ import annotations

import altair as alt
import xarray as xr

from qba.figures.style import INK, MUTED, POLICY_STYLE, data, label, log_axis, title
from qba.lab import frontier_table

PANEL = 230
OTHERS = "#b0b0b0"
GATE = {"wait_mean_s": ("mean wait", "#0072b2"), "wait_p99_s": ("P99 of the wait", "#d55e00")}


def frontier(study: xr.Dataset) -> alt.ConcatChart:
    """Mean wait against its tail, one mark a policy, with 95 % intervals; filled where no other policy is better in both.

    study: as `qba.lab.lab_study` or `qba.lab.lab_windows` returns it; a panel for each load and kind of prediction.
    """
    rates = study.rate.values if "rate" in study.dims else [None]
    rows = []
    for prediction in study.prediction.values:
        panels = []
        for rate in rates:
            part = study.sel(prediction=prediction) if rate is None else study.sel(prediction=prediction, rate=rate)
            where = "trace windows" if rate is None else f"{rate:g} requests/s"
            panels.append(_panel(part, f"{where}, {prediction} predictions"))
        rows.append(alt.hconcat(*panels, spacing=18))
    dim = "seed" if "seed" in study.dims else "window"
    heading = title(
        "Mean against tail",
        f"each mark a policy, relative to FCFS, with 95 % intervals over {study.sizes[dim]} paired {dim}s; down and to the left is "
        "better; filled: no other policy is surely lower in these and in the long requests' P99; named: those and the paper's four",
        width=150,
    )
    return alt.vconcat(*rows, spacing=22, title=heading)


def gate(study: xr.Dataset) -> alt.LayerChart:
    """QBA less weighted round robin 1:k, by quota. study: as `qba.lab.gate_study` returns it."""
    columns: dict[str, list] = {"k": [], "what": [], "value": [], "low": [], "high": []}
    for name, (text, _) in GATE.items():
        for k in study.quota.values:
            columns["k"].append(k)
            columns["what"].append(text)
            for end in ("value", "low", "high"):
                columns[end].append(study[name].sel(quota=k, estimate=end).item())
    scale = alt.Scale(domain=[text for text, _ in GATE.values()], range=[color for _, color in GATE.values()])
    x = alt.X("k:Q", title=label(study.quota, 50), scale=alt.Scale(zero=False, nice=False, padding=8))
    y = {"title": ["QBA less round robin 1:k,", "relative to the latter"], "axis": alt.Axis(format="+.0%")}
    base = alt.Chart(data(columns)).encode(x, alt.Color("what:N", scale=scale))
    band = base.mark_area(opacity=0.15).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    line = base.mark_line(point=alt.OverlayMarkDef(size=34)).encode(alt.Y("value:Q", **y))
    zero = alt.Chart(data({"zero": [0.0]})).mark_rule(color=MUTED).encode(alt.Y("zero:Q", **y))
    ratio = study.attrs["shorts_to_longs"]
    edge = alt.Chart(data({"k": [float(ratio)]})).mark_rule(strokeDash=[4, 3], color=MUTED).encode(alt.X("k:Q"))
    heading = title(
        "What the aging gate adds",
        f"dashed: shorts for each long in the workload ({ratio:.2f}); 95 % bands over paired seeds",
    )
    return alt.layer(zero, edge, band, line).properties(width=340, height=210, title=heading)


def _panel(part: xr.Dataset, text: str) -> alt.LayerChart:
    table = frontier_table(part)
    members = table.pop("members")
    table["style"] = [next((name for name in names if name in POLICY_STYLE), "other") for names in members]
    table["shown"] = [best or style != "other" for best, style in zip(table["undominated"], table["style"])]
    # Names of neighbours go to either side in turn.
    order = sorted(range(len(members)), key=lambda i: (table["mean"][i], table["tail"][i]))
    shown = [i for i in order if table["shown"][i]]
    table["above"] = [i in shown and shown.index(i) % 2 == 0 for i in range(len(members))]
    axes = {}
    for name, words in (("tail", "P99 of the wait"), ("mean", "Mean wait")):
        seen = [x for end in ("", "_low", "_high") for x, show in zip(table[name + end], table["shown"]) if show]
        scale = log_axis(xr.DataArray([*seen, *table[name]]))
        axes[name] = {"title": f"{words}, over FCFS's", **scale}
    domain = [*POLICY_STYLE, "other"]
    colors = alt.Scale(domain=domain, range=[*(color for color, _ in POLICY_STYLE.values()), INK])
    color = alt.Color("style:N", scale=colors, legend=None)
    x, y = alt.X("tail:Q", **axes["tail"]), alt.Y("mean:Q", **axes["mean"])
    base = alt.Chart(data(table))
    others = base.transform_filter("!datum.shown").mark_point(size=22, color=OTHERS).encode(x, y, tooltip=["policy:N"])
    named = base.transform_filter("datum.shown")
    wide = named.mark_rule(strokeWidth=1).encode(alt.X("tail_low:Q", **axes["tail"]), alt.X2("tail_high:Q"), y, color)
    high = named.mark_rule(strokeWidth=1).encode(x, alt.Y("mean_low:Q", **axes["mean"]), alt.Y2("mean_high:Q"), color)
    filled = alt.condition("datum.undominated", alt.value(1), alt.value(0.15))
    point = named.mark_point(size=48, strokeWidth=1.4).encode(x, y, color, fillOpacity=filled, tooltip=["policy:N"])
    texts = [
        named.transform_filter(condition).mark_text(align="left", dx=6, dy=dy, fontSize=9).encode(x, y, color, text="policy:N")
        for condition, dy in (("datum.above", -7), ("!datum.above", 9))
    ]  # fmt: skip
    heading = alt.TitleParams(text, fontSize=11, fontWeight="normal", anchor="middle", offset=4)
    return alt.layer(others, wide, high, point, *texts).properties(width=PANEL, height=200, title=heading)
