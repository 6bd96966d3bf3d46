"""Production traces: Table II as a picture, and the public traces of 2023 against it (paper, section IV-E)."""

from __future__ import annotations

import altair as alt
import xarray as xr

from qba.figures.style import MUTED, data, log_axis, policy_color, policy_shape, policy_styles, select, title
from qba.intervals import ESTIMATE, mean_interval
from qba.tables import table2_intervals

WINDOWS_SHOWN = 250
"""Windows drawn one by one; where there are more, only their quantiles are."""
PAPER_CHANGE = {"PSF": -0.31, "QBA": -0.18}
"""Change of the mean wait against FCFS in the paper's Table II."""
LABEL_TEXT = {"response": "long by response tokens", "total": "long by prompt and response tokens"}
TABLE2_PANELS = {
    "mean": ("wait_mean_s", "Mean waiting time of a window (s)"),
    "tail": ("wait_p99_true_long_s", "99th percentile of a window's true-long waits (s)"),
}
PANEL = 240
PLAIN_AXIS = {"grid": False, "domain": False, "ticks": False, "labelFontSize": 11}
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def table2(study: xr.Dataset) -> alt.HConcatChart:
    """Table II by window: how mean wait and true-long P99 scatter under each policy, and the number the table gives.

    study: as `qba.azure.azure_standin_study` returns it, dimensions (policy, window); its attribute `traffic` becomes
    the subtitle, so that a stand-in is called one.
    """
    numbers = table2_intervals(study)
    windows = xr.Dataset({column: study[variable] for column, (variable, _) in TABLE2_PANELS.items()})
    panels = [
        _distribution(windows, column, numbers[variable], x_title)
        for column, (variable, x_title) in TABLE2_PANELS.items()
    ]
    heading = title(
        "Table II, window by window",
        study.attrs.get("traffic", ""),
        f"box: middle half of {study.sizes['window']} windows; line: 5th to 95th percentile; "
        "marks and numbers: pooled mean, median P99, and below each its 95 % interval over windows",
        width=124,
    )
    return alt.hconcat(*panels, spacing=36, title=heading)


def azure_2023(study: xr.Dataset) -> alt.HConcatChart:
    """What prediction gains on the public traces of 2023: change of the mean wait against FCFS, by trace and label.

    study: as `qba.azure.azure_2023_study` returns it, dimensions (trace, label, policy, window).
    """
    change, low, high = relative_change(study.wait_mean_s)
    table = xr.Dataset({"change": change, "low": low, "high": high})
    table = table.sel(policy=[name for name in PAPER_CHANGE if name in table.policy])
    panels = [
        _changes(table.isel(label=i, drop=True), LABEL_TEXT.get(str(name), str(name)), labels=i == 0)
        for i, name in enumerate(study.label.values)
    ]
    heading = title(
        "Azure 2023: mean wait against FCFS",
        f"{study.sizes['window']} windows of each trace, pooled, and 95 % confidence intervals over windows",
        "dashed: the paper's Table II, on a trace it does not name (PSF −31 %, QBA −18 %)",
        width=110,
    )
    return alt.hconcat(*panels, spacing=20, title=heading).resolve_scale(x="shared")


def relative_change(wait: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """Pooled change of a wait against FCFS, relative, with its 95 % interval over windows.

    wait: dimensions (policy, window, …). The interval is the ratio estimator's: windows are paired, so only what a
    window deviates from the common ratio counts.
    """
    baseline = select(wait, "azure_2023", policy="FCFS").drop_vars("policy")
    ratio = wait.mean("window") / baseline.mean("window")
    _, low, high = mean_interval(wait - ratio * baseline, "window")
    scale = baseline.mean("window")
    return ratio - 1, ratio - 1 + low / scale, ratio - 1 + high / scale


def _distribution(windows: xr.Dataset, column: str, number: xr.DataArray, x_title: str) -> alt.LayerChart:
    values = windows[column]
    names = list(policy_styles(values.policy.values))
    boxes = {name: values.quantile(level, "window").drop_vars("quantile") for name, level in QUANTILES.items()}
    ends = {name: number.sel(estimate=name, drop=True) for name in ESTIMATE}
    table = xr.Dataset(boxes | {"number": ends["value"], "low": ends["low"], "high": ends["high"]})
    x = {"title": x_title, **log_axis(values)}
    y = alt.Y("policy:N", sort=names, title=None, axis=alt.Axis(**PLAIN_AXIS))
    base = alt.Chart(data(table.drop_attrs())).encode(y, policy_color(names, legend=None))
    line = base.mark_rule(strokeWidth=1.2).encode(alt.X("q05:Q", **x), alt.X2("q95:Q"))
    box = base.mark_bar(size=13, opacity=0.45).encode(alt.X("q25:Q", **x), alt.X2("q75:Q"))
    mark = base.mark_point(size=70, stroke="white", strokeWidth=0.8).encode(
        alt.X("number:Q", **x),
        policy_shape(names, legend=None),
        tooltip=["policy:N"]
        + [alt.Tooltip(f"{name}:Q", format=".3g") for name in ("number", "low", "high", *QUANTILES)],
    )
    text = base.mark_text(align="left", dx=6, fontSize=11).encode(
        x=alt.value(PANEL), text=alt.Text("number:Q", format=".2f")
    )
    interval = base.transform_calculate(interval="format(datum.low, '.2f') + '…' + format(datum.high, '.2f')")
    interval = (
        interval.transform_filter("isValid(datum.low)")
        .mark_text(align="left", dx=6, dy=12, fontSize=9)
        .encode(x=alt.value(PANEL), text="interval:N")
    )
    layers = [line, box, mark, text, interval]
    if values.sizes["window"] <= WINDOWS_SHOWN:
        # Each window as a dot below its policy's box, spread by the golden ratio: evenly, and the same every time.
        strip = alt.Chart(data(windows.drop_attrs()))
        strip = strip.transform_calculate(spread="11 + 9 * (datum.window * 0.618034 % 1)")
        strip = strip.mark_circle(size=7, opacity=0.5, aria=False).encode(
            alt.X(f"{column}:Q", **x), y, policy_color(names, legend=None),
            yOffset=alt.YOffset("spread:Q", scale=alt.Scale(domain=[-22, 22], range=[0, 44])),
            tooltip=["policy:N", "window:Q", alt.Tooltip(f"{column}:Q", format=".3g")],
        )  # fmt: skip
        layers.insert(0, strip)
    return alt.layer(*layers).properties(width=PANEL, height=190)


def _changes(table: xr.Dataset, text: str, labels: bool) -> alt.LayerChart:
    names = [str(name) for name in table.policy.values]
    x = {
        "title": "Change of mean waiting time", "scale": alt.Scale(zero=True, nice=False, padding=8),
        "axis": alt.Axis(format=".0%", tickCount=6),
    }  # fmt: skip
    base = alt.Chart(data(table.drop_attrs())).encode(
        alt.Y("trace:N", title=None, axis=alt.Axis(**PLAIN_AXIS, labels=labels)),
        policy_color(names),
        yOffset=alt.YOffset("policy:N", sort=names),
    )
    paper = alt.Chart(data({"policy": names, "change": [PAPER_CHANGE[name] for name in names]}))
    paper = paper.mark_rule(strokeDash=[4, 3]).encode(alt.X("change:Q", **x), policy_color(names))
    zero = alt.Chart(data({"change": [0.0]})).mark_rule(color=MUTED).encode(alt.X("change:Q", **x))
    whisker = base.mark_rule(strokeWidth=1.5).encode(alt.X("low:Q", **x), alt.X2("high:Q"))
    point = base.mark_point(size=55).encode(
        alt.X("change:Q", **x),
        policy_shape(names),
        tooltip=["trace:N", "policy:N"] + [alt.Tooltip(f"{name}:Q", format="+.1%") for name in table.data_vars],
    )
    heading = alt.TitleParams(text, fontSize=11, fontWeight="normal", anchor="middle", offset=4)
    return alt.layer(zero, paper, whisker, point).properties(width=PANEL, height=150, title=heading)
