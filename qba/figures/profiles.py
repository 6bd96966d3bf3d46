"""Engine profiles: measured batches against the fitted batch-time law, and how far each is off."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np
import xarray as xr

from qba.errors import InputError
from qba.figures.style import COLUMN, INK, MUTED, data, log_axis, title
from qba.intervals import ESTIMATE

LAW, BATCH, ODD = "#0072b2", "#7a7a7a", "#d55e00"
"""Colours of the law, of the batches, and of those that count as outliers."""
SHOWN = 2000
"""Most batches drawn of one fit; of more, every second, third ... is, and all outliers."""
PERCENT = "datum.value ? format(datum.value, '+.0%') : '0'"
KINDS = {"batch": BATCH, "outlier": ODD}


def profile_fit(*fits: xr.Dataset) -> alt.VConcatChart:
    """Batches and the law fitted to them, side by side for several fits on the same axes; below, what is left over.

    fits: as `qba.fit_profile` returns them. Both axes of the upper panels are logarithmic, so that equal distances are
    equal ratios; the curve has its pointwise 95 % band, and the knee its interval as a grey zone.

    Raises InputError without a fit, or for something else than a fit.
    """
    if not fits:
        raise InputError("profile_fit: no fit given, but at least one result of qba.fit_profile is needed")
    for fit in fits:
        if not isinstance(fit, xr.Dataset) or "curve_s" not in fit:
            raise InputError(f"profile_fit: {fit!r:.60} is not a result of qba.fit_profile")
    sizes = _log(xr.concat([fit.tokens.drop_vars(fit.tokens.coords).rename(batch="all") for fit in fits], "all"))
    times = _log(
        xr.concat([fit[name].rename(batch="all") for fit in fits for name in ("seconds", "fitted_s")], "all") * 1e3
    )
    misses = [_miss(fit) for fit in fits]
    reach = 1.08 * max(float(np.abs(miss[~fit.outlier.values]).max()) for miss, fit in zip(misses, fits))
    columns = []
    for i, (fit, miss) in enumerate(zip(fits, misses)):
        panels = _times(fit, sizes, times, leftmost=i == 0), _misses(fit, miss, sizes, reach, leftmost=i == 0)
        columns.append(alt.vconcat(*panels, bounds="flush", spacing=30))  # flush: in line from column to column
    heading = title(
        "Batch time against tokens: measured and fitted",
        "blue: c0 + a max(0, b \u2212 b0) with 95 % band; grey: interval of the knee b0",
        *_left_out(fits, reach),
        width=64 * len(fits),
    )
    return alt.vconcat(alt.hconcat(*columns, spacing=18), title=heading)


def _left_out(fits: tuple[xr.Dataset, ...], reach: float) -> list[str]:
    """What the picture does not show, in words."""
    lines = []
    outliers = sum(int(fit.outliers) for fit in fits)
    if outliers:
        lines.append(f"orange: outliers ({outliers}), in the lower panel at the edge where they are further off")
    every = max(_every(fit) for fit in fits)
    if every > 1:
        lines.append(f"of up to {every} neighbouring batches one is drawn")
    lines += [f"{fit.attrs['name']}: {note}" for fit in fits for note in fit.attrs.get("notes", "").splitlines()]
    return lines


def _log(values: xr.DataArray) -> dict[str, Any]:
    """`log_axis`, with ticks at powers of ten alone where there would be too many to be read."""
    axis = log_axis(values)
    if "axis" in axis and len(axis["axis"].values) > 7:
        axis["axis"] = alt.Axis(values=[v for v in axis["axis"].values if math.log10(v).is_integer()], format="~g")
    return axis


def _every(fit: xr.Dataset) -> int:
    return math.ceil(fit.sizes["batch"] / SHOWN)


def _drawn(fit: xr.Dataset) -> np.ndarray:
    return (np.arange(fit.sizes["batch"]) % _every(fit) == 0) | fit.outlier.values


def _miss(fit: xr.Dataset) -> np.ndarray:
    """How much longer each batch took than the law says, relative to the law."""
    return (fit.seconds / fit.fitted_s).values - 1


def _x(sizes: dict[str, Any], text: str | None) -> alt.X:
    return alt.X("tokens:Q", title=text, **sizes)


def _colors() -> alt.Color:
    return alt.Color("kind:N", scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values())), legend=None)


def _rows(fit: xr.Dataset, **columns: np.ndarray) -> dict[str, np.ndarray]:
    kinds = np.where(fit.outlier.values, "outlier", "batch")
    drawn = _drawn(fit)
    return {name: column[drawn] for name, column in {"tokens": fit.tokens.values, "kind": kinds, **columns}.items()}


def _knee(fit: xr.Dataset, sizes: dict[str, Any], text: str | None) -> alt.LayerChart:
    """The knee and its interval, as far as the axis goes."""
    value, low, high = fit.knee_tokens.values
    ends = sizes["scale"].domain
    zone = data({"from": [max(low, ends[0])], "to": [min(high, ends[1])]})
    x = {"title": text, **sizes}
    rect = alt.Chart(zone).mark_rect(color="#ececec").encode(alt.X("from:Q", **x), alt.X2("to:Q"))
    rule = alt.Chart(data({"knee": [value]})).mark_rule(color=MUTED, strokeDash=[4, 3]).encode(alt.X("knee:Q", **x))
    return rect + rule


def _times(fit: xr.Dataset, sizes: dict[str, Any], times: dict[str, Any], leftmost: bool) -> alt.LayerChart:
    y = {"title": "Batch time (ms)" if leftmost else None, **times}
    x = _x(sizes, None)
    curve = {name: fit.curve_s.sel(estimate=name).values * 1e3 for name in ESTIMATE}
    base = alt.Chart(data({"tokens": fit.curve_tokens.values, **curve})).encode(x)
    band = base.mark_area(color=LAW, opacity=0.18).encode(alt.Y("low:Q", **y), alt.Y2("high:Q"))
    law = base.mark_line(color=LAW, strokeWidth=1.8).encode(alt.Y("value:Q", **y))
    rows = _rows(fit, milliseconds=fit.seconds.values * 1e3)
    batches = alt.Chart(data(rows)).mark_point(size=12, opacity=0.75).encode(
        x, alt.Y("milliseconds:Q", **y), _colors(), tooltip=["tokens:Q", alt.Tooltip("milliseconds:Q", format=".3g")]
    )  # fmt: skip
    heading = alt.TitleParams(
        fit.attrs["name"], subtitle=_parameters(fit), fontSize=11, subtitleFontSize=10, subtitleColor=INK, offset=6
    )
    return alt.layer(_knee(fit, sizes, None), band, batches, law).properties(width=COLUMN, height=190, title=heading)


def _misses(fit: xr.Dataset, miss: np.ndarray, sizes: dict[str, Any], reach: float, leftmost: bool) -> alt.LayerChart:
    y = alt.Y(
        "miss:Q", title="Measured less fitted" if leftmost else None, axis=alt.Axis(labelExpr=PERCENT, tickCount=5),
        scale=alt.Scale(domain=[-reach, reach], nice=False),
    )  # fmt: skip
    text = "Tokens in the batch"
    rows = _rows(fit, miss=np.clip(miss, -0.97 * reach, 0.97 * reach))
    points = alt.Chart(data(rows)).mark_point(size=12, opacity=0.75).encode(
        _x(sizes, text), y, _colors(), tooltip=["tokens:Q", alt.Tooltip("miss:Q", format="+.1%")]
    )  # fmt: skip
    zero = alt.Chart(data({"miss": [0.0]})).mark_rule(color=LAW, strokeWidth=1.4).encode(y)
    return alt.layer(_knee(fit, sizes, text), zero, points).properties(width=COLUMN, height=85)


def _parameters(fit: xr.Dataset) -> list[str]:
    """The three parameters with their intervals, in words for a heading."""
    texts = []
    for symbol, name, factor, unit in (
        ("c0", "batch_overhead_s", 1e3, "ms"), ("a", "token_time_s", 1e6, "\u00b5s/token"),
        ("b0", "knee_tokens", 1, "tokens"),
    ):  # fmt: skip
        value, low, high = (_number(v * factor) for v in fit[name].values)
        texts.append(f"{symbol} = {value} {unit} ({low} to {high})")
    return [f"{texts[0]}, {texts[1]}", f"{texts[2]}; scatter {float(fit.residual_scale):.1%}"]


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "\u221e"
