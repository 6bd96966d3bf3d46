"""Which length to predict: how work lies across responses, and what short-first gains by it; the stand-in's evidence."""

from __future__ import annotations

import altair as alt
import xarray as xr

from qba.figures.azure import relative_change
from qba.figures.style import MUTED, data, log_axis, select, title

TRACE_STYLE = {
    "code": ("#d55e00", "triangle-up"),
    "conversation": ("#0072b2", "circle"),
    "merged": ("#cc79a7", "square"),
    "stand-in 2024": ("#009e73", "diamond"),
    "excerpt 2024": ("#8c6d31", "triangle-down"),
    "synthetic": ("#404040", "cross"),
}
"""Colour and mark of each source of requests."""
SOURCE_STYLE = {"excerpt": "#0072b2", "stand-in": "#d55e00"}
PARTS = {"prompt": "#9ecae1", "response": "#d55e00"}
PANEL, SMALL = 270, 120


def work_by_response(study: xr.Dataset) -> alt.HConcatChart:
    """Mean prompt and response tokens by tenths of the requests, in order of their responses, a panel a trace.

    study: as `qba.labels.label_study` returns it. Where the bars do not rise, a short response is no short job.
    """
    lengths = xr.concat([study[f"{part}_by_response"] for part in PARTS], "part").assign_coords(part=list(PARTS))
    table = lengths.drop_attrs().to_dataset(name="tokens")
    panels = []
    for i, trace in enumerate(study.trace.values):
        chart = alt.Chart(data(table.sel(trace=trace, drop=True))).mark_bar(size=9).encode(
            alt.X("tenth:O", title="Tenth by response" if i == 0 else None, axis=alt.Axis(values=[1, 10], labelAngle=0)),
            alt.Y(
                "sum(tokens):Q", title="Mean tokens (scaled)" if i == 0 else None, scale=alt.Scale(domain=[0, 1900]),
                axis=alt.Axis(labels=i == 0, tickCount=4),
            ),
            alt.Color("part:N", scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values())), sort=list(PARTS)),
            alt.Order("part:N"),
            tooltip=["part:N", "tenth:O", alt.Tooltip("tokens:Q", format=".0f")],
        )  # fmt: skip
        panels.append(chart.properties(width=SMALL, height=130, title=_small(str(trace))))
    heading = title(
        "Is a short response a short job?",
        "mean work of a request, by tenths of requests in order of their response length",
        width=110,
    )
    return alt.hconcat(*panels, spacing=10, title=heading)


def gain_by_dependence(labels: xr.Dataset, dependence: xr.Dataset) -> alt.HConcatChart:
    """PSF's change of the mean wait against the rank correlation of the lengths, and against the long class's work.

    labels: as `qba.labels.label_study` returns it; dependence: as `qba.labels.dependence_study` does.
    """
    family, real = _changes(dependence), _changes(labels.sel(label=["response", "total", "prompt"]))
    shown = list(labels.trace.values)
    response = _lines(family.sel(label="response", drop=True), real.sel(label="response", drop=True), shown)
    heading = title(
        "When serving short requests first gains",
        "lines: the same prompts and responses, dealt out anew in each window; large marks: as they came",
        "right: labels by response, total and prompt; dashed: theory for one server; vertical: the long requests' share",
        width=120,
    )
    panels = [response, _collapse(family, real, shown, labels.attrs["long_requests"])]
    return alt.hconcat(*panels, spacing=24, title=heading).resolve_scale(color="shared", shape="shared")


def gain_by_label(study: xr.Dataset) -> alt.VConcatChart:
    """Change of mean wait and of P99 against FCFS by what the label goes by, from prompt to response; a column a policy.

    study: as `qba.labels.label_study` returns it.
    """
    policies = [str(name) for name in study.policy.values if name != "FCFS"]
    rows = []
    for variable, text in (("wait_mean_s", "Change of mean wait"), ("wait_p99_s", "Change of P99 wait")):
        change, low, high = relative_change(study[variable])
        table = xr.Dataset({"change": change, "low": low, "high": high})
        panels = [
            _by_label(select(table, "gain_by_label", policy=name), text, name if not rows else "") for name in policies
        ]
        rows.append(alt.hconcat(*panels, spacing=24).resolve_scale(y="shared"))
    heading = title(
        "Which length should the label go by?",
        f"against FCFS; {study.sizes['window']} windows of each, pooled, and 95 % confidence intervals over windows; "
        "predictions are perfect",
        "label: prompt plus so many times response tokens; total: once; time alone: 11 times",
        width=120,
    )
    return alt.vconcat(*rows, spacing=12, title=heading)


def excerpt_fit(study: xr.Dataset) -> alt.HConcatChart:
    """The stand-in against the real excerpt: quantiles of the lengths, and how they hang together.

    study: as `qba.excerpt.compare` returns it. Bars: where 95 % of samples of the excerpt's size lie.
    """
    sources, wide = list(SOURCE_STYLE), study.drop_attrs()
    lengths = wide.length_quantile.to_dataset("value")
    panels = []
    for length in study.length.values:
        y = {"title": f"{str(length).capitalize()} tokens", **log_axis(study.length_quantile.sel(length=length))}
        base = alt.Chart(data(lengths.sel(length=length, drop=True))).encode(
            alt.X("level:O", title="Level of the quantile", axis=alt.Axis(labelAngle=0)), _source(sources),
            xOffset=alt.XOffset("source:N", sort=sources),
        )  # fmt: skip
        bar = base.mark_rule(strokeWidth=1.4).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
        panels.append((bar + base.mark_point().encode(alt.Y("figure:Q", **y))).properties(width=200, height=190))
    statistics = list(study.statistic.values)
    x = {"title": "Correlation, or share"}
    base = alt.Chart(data(wide.dependence.to_dataset("value"))).encode(
        alt.Y("statistic:N", sort=statistics, title=None, axis=alt.Axis(labelLimit=260)), _source(sources),
        yOffset=alt.YOffset("source:N", sort=sources),
    )  # fmt: skip
    bar = base.mark_rule(strokeWidth=1.4).encode(alt.X("low:Q", **x), alt.X2("high:Q"))
    panels.append((bar + base.mark_point().encode(alt.X("figure:Q", **x))).properties(width=170, height=190))
    heading = title(
        "The stand-in against real rows",
        f"bars: where 95 % of samples of {study.attrs['rows']} rows lie",
        "long: above the 0.85-quantile",
        width=110,
    )
    return alt.hconcat(*panels, spacing=16, title=heading)


def _changes(study: xr.Dataset) -> xr.Dataset:
    """PSF's pooled change with its interval, beside what it is drawn against."""
    change, low, high = relative_change(study.wait_mean_s.sel(policy=["FCFS", "PSF"]))
    table = xr.Dataset({"change": change, "low": low, "high": high}).sel(policy="PSF").drop_vars("policy")
    return table.merge(study[["rank_correlation", "long_work", "predicted_change"]]).drop_attrs()


def _lines(family: xr.Dataset, real: xr.Dataset, shown: list[str]) -> alt.LayerChart:
    x = {"title": "Rank correlation of prompt and response"}
    y = {"title": "PSF: change of mean wait against FCFS", "axis": alt.Axis(format=".0%")}
    base = alt.Chart(data(family)).encode(alt.X("rank_correlation:Q", **x), _color(shown))
    band = base.mark_area(opacity=0.12).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    line = base.mark_line(strokeWidth=1.4).encode(alt.Y("change:Q", **y))
    marks = alt.Chart(data(real)).encode(alt.X("rank_correlation:Q", **x), _color(shown))
    whisker = marks.mark_rule(strokeWidth=1.4).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    point = marks.mark_point(size=75, stroke="white", strokeWidth=0.6).encode(
        alt.Y("change:Q", **y), _shape(shown), tooltip=_tooltip("rank_correlation:Q")
    )
    zero = alt.Chart(data({"change": [0.0]})).mark_rule(color=MUTED).encode(alt.Y("change:Q", **y))
    panel = alt.layer(zero, band, line, whisker, point)
    return panel.properties(width=PANEL, height=230, title=_small("label by response"))


def _collapse(family: xr.Dataset, real: xr.Dataset, shown: list[str], long_requests: float) -> alt.LayerChart:
    x = {"title": "Share of all tokens that long requests hold", "axis": alt.Axis(format=".0%")}
    y = {"title": "PSF: change of mean wait against FCFS", "axis": alt.Axis(format=".0%")}
    x["scale"] = alt.Scale(zero=False, nice=False, padding=8)
    base = alt.Chart(data(family)).encode(alt.X("long_work:Q", **x), _color(shown))
    dots = base.mark_circle(size=14, opacity=0.8).encode(alt.Y("change:Q", **y))
    theory = alt.Chart(data(family.sel(label="response", drop=True))).mark_line(strokeWidth=1, strokeDash=[4, 3])
    theory = theory.encode(alt.X("long_work:Q", **x), alt.Y("predicted_change:Q", **y), _color(shown))
    point = alt.Chart(data(real)).mark_point(size=75, stroke="white", strokeWidth=0.6).encode(
        alt.X("long_work:Q", **x), alt.Y("change:Q", **y), _color(shown), _shape(shown),
        tooltip=_tooltip("label:N", "long_work:Q"),
    )  # fmt: skip
    zero = alt.Chart(data({"change": [0.0]})).mark_rule(color=MUTED).encode(alt.Y("change:Q", **y))
    fair = alt.Chart(data({"long_work": [long_requests]})).mark_rule(color=MUTED).encode(alt.X("long_work:Q", **x))
    panel = alt.layer(zero, fair, theory, dots, point)
    return panel.properties(width=PANEL, height=230, title=_small("any label"))


def _by_label(table: xr.Dataset, text: str, heading: str) -> alt.LayerChart:
    traces, labels = list(table.trace.values), list(table.label.values)
    y = {"title": text, "axis": alt.Axis(format="+.0%")}
    base = alt.Chart(data(table.drop_attrs())).encode(
        alt.X("label:N", sort=labels, title="Label goes by", axis=alt.Axis(labelAngle=-40)), _color(traces)
    )
    whisker = base.mark_rule(strokeWidth=1.2).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    line = base.mark_line(strokeWidth=1.2).encode(alt.Y("change:Q", **y))
    point = base.mark_point().encode(alt.Y("change:Q", **y), _shape(traces), tooltip=_tooltip("label:N"))
    return alt.layer(line, whisker, point).properties(width=PANEL, height=170, title=_small(heading))


def _color(traces: list[str]) -> alt.Color:
    domain = [str(name) for name in traces]
    colors = [TRACE_STYLE[name][0] if name in TRACE_STYLE else MUTED for name in domain]
    return alt.Color("trace:N", scale=alt.Scale(domain=domain, range=colors))


def _shape(traces: list[str]) -> alt.Shape:
    domain = [str(name) for name in traces]
    shapes = [TRACE_STYLE[name][1] if name in TRACE_STYLE else "stroke" for name in domain]
    return alt.Shape("trace:N", scale=alt.Scale(domain=domain, range=shapes))


def _source(sources: list[str]) -> alt.Color:
    return alt.Color("source:N", scale=alt.Scale(domain=sources, range=list(SOURCE_STYLE.values())))


def _small(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, fontSize=11, fontWeight="normal", anchor="middle", offset=4)


def _tooltip(*columns: str) -> list[alt.Tooltip | str]:
    return ["trace:N", *columns, *(alt.Tooltip(f"{name}:Q", format="+.1%") for name in ("change", "low", "high"))]
