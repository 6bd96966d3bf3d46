"""What all figures share: theme, one colour and mark for each policy, labels from datasets, rows for Altair.

The colours are Okabe and Ito's, which stay apart for colour-blind readers; each policy also has a mark of its own, so
that a figure survives grey printing. Liberation Sans comes with the renderer (vl-convert) and has the widths of Arial:
the same picture on every machine.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
import numpy as np
import xarray as xr

from qba.errors import InputError
from qba.intervals import mean_interval

Data = TypeVar("Data", xr.Dataset, xr.DataArray)

THEME = "qba"
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
INK, MUTED, GRID = "#222222", "#5f5f5f", "#e6e6e6"
COLUMN = 270
"""Width of one panel, pixels: with its axis it fills one column of a two-column page (3.5 inches of 96 pixels)."""
HEIGHT = 180
THIRD = 165
"""Width of one of three panels side by side, over both columns."""
MAX_ROWS = 5000
"""Rows of one dataset that Altair accepts."""

POLICY_STYLE: dict[str, tuple[str, str]] = {
    "FCFS": ("#404040", "square"),
    "PSF": ("#d55e00", "triangle-up"),
    "AA": ("#009e73", "diamond"),
    "QBA": ("#0072b2", "circle"),
}
"""Colour and mark of each policy."""
SPARE_STYLES = (
    ("#cc79a7", "cross"), ("#e69f00", "triangle-down"), ("#56b4e9", "triangle-right"), ("#8c6d31", "triangle-left"),
)  # fmt: skip
"""For policies that a reader adds, in order of appearance."""


@alt.theme.register(THEME, enable=False)
def theme() -> alt.theme.ThemeConfig:
    """The figures' theme: plain, small type, light grid, legend above the plot."""
    text = {"labelFont": FONT, "titleFont": FONT, "labelFontSize": 10, "titleFontSize": 11, "labelColor": INK}
    return {
        "config": {
            "background": "white",
            "padding": 6,
            "font": FONT,
            "view": {"continuousWidth": COLUMN, "continuousHeight": HEIGHT, "stroke": None},
            "axis": text | {
                "titleColor": INK, "titleFontWeight": "normal", "gridColor": GRID, "domainColor": MUTED,
                "tickColor": MUTED, "tickSize": 4, "titlePadding": 6,
            },
            "legend": text | {
                "orient": "top", "direction": "horizontal", "title": None, "symbolSize": 60, "symbolOpacity": 1,
                "columnPadding": 14, "offset": 6, "labelFontSize": 11,
            },
            "header": text | {"titleFontWeight": "normal", "labelFontSize": 11},
            "title": {
                "font": FONT, "fontSize": 12, "fontWeight": "bold", "color": INK, "anchor": "start", "frame": "group",
                "subtitleFont": FONT, "subtitleFontSize": 10, "subtitleColor": MUTED, "subtitlePadding": 3, "offset": 8,
            },
            "line": {"strokeWidth": 1.8},
            "point": {"filled": True, "size": 34, "opacity": 1},
        }
    }  # fmt: skip


def use() -> None:
    """Set up a notebook: static SVG charts in the figures' theme, and datasets shown as text.

    Both come out the same at each run, so that an executed notebook can be compared with what it shows.
    """
    alt.renderers.enable("svg")
    alt.theme.enable(THEME)
    xr.set_options(display_style="text")


def label(variable: xr.DataArray, width: int = 36) -> list[str]:
    """Axis title: the variable's long name and unit, in lines of at most `width` characters."""
    units = variable.attrs.get("units", "1")
    text = variable.attrs.get("long_name", str(variable.name))
    return textwrap.wrap(text[:1].upper() + text[1:] + (f" ({units})" if units != "1" else ""), width)


def title(text: str, *lines: str, width: int = 60, **options: Any) -> alt.TitleParams:
    """Title with a subtitle; each of `lines` starts a new line of the subtitle and is broken at `width` characters."""
    subtitle = [part for line in lines if line for part in textwrap.wrap(line, width)]
    return alt.TitleParams(text, subtitle=subtitle, **options)


def policy_styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and mark of each of these policies: the known ones in their fixed order, then the others."""
    names = [str(name) for name in names]
    known = {name: style for name, style in POLICY_STYLE.items() if name in names}
    others = [name for name in names if name not in POLICY_STYLE]
    return known | {name: SPARE_STYLES[i % len(SPARE_STYLES)] for i, name in enumerate(others)}


def policy_color(names: Iterable[str], **options: Any) -> alt.Color:
    """Colour encoding of the column `policy`."""
    styles = policy_styles(names)
    return alt.Color("policy:N", scale=alt.Scale(domain=list(styles), range=[s[0] for s in styles.values()]), **options)


def policy_shape(names: Iterable[str], **options: Any) -> alt.Shape:
    """Mark encoding of the column `policy`; its legend joins the colours'."""
    styles = policy_styles(names)
    return alt.Shape("policy:N", scale=alt.Scale(domain=list(styles), range=[s[1] for s in styles.values()]), **options)


def select(dataset: Data, who: str, **chosen: str | float) -> Data:
    """The dataset at one label of each given dimension; an InputError names what there is."""
    for name, value in chosen.items():
        there = dataset[name].values
        hit = there == value if isinstance(value, str) else np.isclose(there, value)
        if not hit.any():
            raise InputError(f"{who}: no {name} {value!r} in the dataset; there are {', '.join(map(str, there))}")
        dataset = dataset.isel({name: int(np.argmax(hit))})
    return dataset


def rows(columns: xr.Dataset | Mapping[str, Sequence]) -> list[dict[str, Any]]:
    """One row a point, as Altair takes them: five significant digits, and None where a value is not finite.

    Raises InputError for more rows than Altair draws.
    """
    if isinstance(columns, xr.Dataset):
        selected = [name for name in columns.coords if name not in columns.dims]
        columns = columns.drop_vars(selected).to_dataframe().reset_index().to_dict("list")
    names = list(columns)
    values = [[_plain(value) for value in columns[name]] for name in names]
    if len(values[0]) > MAX_ROWS:
        raise InputError(
            f"figure: {len(values[0]):,} rows of {', '.join(names)}; Altair draws at most {MAX_ROWS:,}, "
            "so select or average first"
        )
    return [dict(zip(names, row)) for row in zip(*values)]


def data(columns: xr.Dataset | Mapping[str, Sequence]) -> alt.InlineData:
    """`rows` as a chart's data."""
    return alt.InlineData(values=rows(columns))


def log_axis(values: xr.Dataset | xr.DataArray) -> dict[str, Any]:
    """Scale and axis of a positive quantity: from its least to its largest value, with ticks at 1, 2 and 5."""
    values = values.to_array().values if isinstance(values, xr.Dataset) else values.values
    values = values[np.isfinite(values) & (values > 0)]
    if not values.size:
        return {}
    low, high = float(values.min()) / 1.1, float(values.max()) * 1.1
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick for d in decades for tick in (float(f"{digit}e{d}") for digit in (1, 2, 5)) if low <= tick <= high]
    axis = {"axis": alt.Axis(values=ticks, format="~g")} if len(ticks) > 1 else {}
    return {"scale": alt.Scale(type="log", domain=[float(f"{low:.3g}"), float(f"{high:.3g}")], nice=False)} | axis


def interval_rows(values: xr.DataArray, dim: str = "seed") -> xr.Dataset:
    """Mean over the replications and its 95 % interval as columns `mean`, `low`, `high`."""
    return xr.Dataset(dict(zip(("mean", "low", "high"), mean_interval(values, dim))))


def curves(
    values: xr.DataArray, x: str, *, reference: Sequence[str] = (), log: bool = False, width: int = COLUMN,
    height: int = HEIGHT,
) -> alt.LayerChart:  # fmt: skip
    """Mean over seeds against `x`, one curve a policy, with 95 % confidence bands.

    values: dimensions (policy, x, seed). reference: policies that do not depend on x, drawn dashed. log: scale of the
    values; a band that reaches 0 then goes down to the axis.
    """
    names = [str(name) for name in values.policy.values]
    table = interval_rows(values).assign(dashed=("policy", np.isin(names, reference)))
    y_axis = {"title": label(values), "scale": alt.Scale(zero=True)}
    if log:
        table = table.assign(low=table.low.clip(min=float(table["mean"].min()) / 2))
        y_axis |= log_axis(table[["low", "mean", "high"]])
    base = alt.Chart(data(table)).encode(
        alt.X(f"{x}:Q", title=label(values[x], 50), scale=alt.Scale(zero=False, nice=False, padding=6)),
        policy_color(names),
    )
    band = base.mark_area(opacity=0.13).encode(alt.Y("low:Q", **y_axis), alt.Y2("high:Q"))
    line = base.mark_line().encode(
        alt.Y("mean:Q", **y_axis),
        strokeDash=alt.condition("datum.dashed", alt.value([5, 3]), alt.value([1, 0])),
    )
    point = base.mark_point().encode(
        alt.Y("mean:Q", **y_axis),
        policy_shape(names),
        tooltip=[
            alt.Tooltip("policy:N"), alt.Tooltip(f"{x}:Q"), alt.Tooltip("mean:Q", format=".3g"),
            alt.Tooltip("low:Q", format=".3g", title="95 % from"), alt.Tooltip("high:Q", format=".3g", title="to"),
        ],
    )  # fmt: skip
    return alt.layer(band, line, point).properties(width=width, height=height)


def _plain(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
