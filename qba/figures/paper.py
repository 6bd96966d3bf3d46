"""The paper's figures on synthetic load: model and simulator (2), settings of QBA (3), prediction errors (4 and 5)."""

from __future__ import annotations

import altair as alt
import numpy as np
import xarray as xr

from qba.figures.style import (
    COLUMN,
    HEIGHT,
    THIRD,
    curves,
    data,
    label,
    log_axis,
    policy_color,
    policy_shape,
    select,
    title,
)

DEFAULT_QUOTA, DEFAULT_AGING_QUANTILE = 5, 0.8
"""The setting that is held while the other one varies (paper, section IV-C)."""

ERROR_PANELS = ("wait_mean_s", "wait_p99_true_short_s", "wait_p99_true_long_s")
ERROR_TEXT = {
    "short_to_long": ("Short-to-long errors", "true shorts predicted long"),
    "long_to_short": ("Long-to-short errors", "true longs predicted short"),
}


def model_mean(theory: xr.Dataset, closure: str = "mixture", parallelism: str = "formula") -> alt.LayerChart:
    """Fig. 2a: mean wait in the reduced model against load, for one closure and one choice of parallelism.

    theory: `wait_mean_s` over (parallelism, closure, policy, rate) and `extrapolated` over (policy, rate). Where the
    promoted fraction is extrapolated the curve is dashed; infinite waits (load 1 or more) are left out.
    """
    chosen = select(theory, "model_mean", closure=closure, parallelism=parallelism)
    wait, names = chosen.wait_mean_s, chosen.policy.values
    finite = np.isfinite(wait)
    table = {
        "policy": wait.policy.broadcast_like(wait).values[finite.values],
        "rate": wait.rate.broadcast_like(wait).values[finite.values],
        "wait": wait.values[finite.values],
        "extrapolated": chosen.extrapolated.transpose(*wait.dims).values[finite.values],
    }
    base = alt.Chart(data(table)).encode(
        alt.X("rate:Q", title=label(wait.rate), scale=alt.Scale(zero=False, nice=False, padding=6)),
        alt.Y("wait:Q", title=label(wait), **log_axis(wait)),
        policy_color(names),
    )
    dashed = base.mark_line(strokeDash=[4, 3], opacity=0.6)
    solid = base.mark_line().transform_filter("!datum.extrapolated")
    point = base.mark_point().encode(
        policy_shape(names),
        opacity=alt.condition("datum.extrapolated", alt.value(0.5), alt.value(1)),
        tooltip=["policy:N", "rate:Q", alt.Tooltip("wait:Q", format=".3g"), "extrapolated:N"],
    )
    servers = f"{closure.replace('_', '-')} closure, n = {int(chosen.servers)} ({parallelism})"
    lost = wait.rate.values[~finite.all("policy").values]
    return alt.layer(dashed, solid, point).properties(
        width=COLUMN,
        height=HEIGHT,
        title=title(
            "Reduced model",
            servers,
            "dashed: promoted fraction beyond the measured loads" if chosen.extrapolated.any() else "",
            f"infinite, so not drawn, from {lost.min():g} requests/s (load >= 1)" if lost.size else "",
        ),
    )


def load_mean(sweep: xr.Dataset) -> alt.LayerChart:
    """Fig. 2b: simulated mean wait against load. sweep: `wait_mean_s` over (policy, rate, seed)."""
    return curves(sweep.wait_mean_s, "rate", log=True).properties(title=title("Simulator: mean", _seeds(sweep)))


def load_tail(sweep: xr.Dataset) -> alt.LayerChart:
    """Fig. 2c: simulated 99th percentile of the wait against load. sweep: `wait_p99_s` over (policy, rate, seed)."""
    return curves(sweep.wait_p99_s, "rate", log=True).properties(title=title("Simulator: tail", _seeds(sweep)))


def quota_mean(sensitivity: xr.Dataset) -> alt.LayerChart:
    """Fig. 3a: mean wait against the quota. sensitivity: `wait_mean_s` over (policy, quota, aging_quantile, seed)."""
    return _against_quota(sensitivity, "wait_mean_s", "Quota: mean")


def quota_tail(sensitivity: xr.Dataset) -> alt.LayerChart:
    """Fig. 3b: 99th percentile of the wait against the quota; input as for `quota_mean`, with `wait_p99_s`."""
    return _against_quota(sensitivity, "wait_p99_s", "Quota: tail")


def aging_tail(sensitivity: xr.Dataset) -> alt.LayerChart:
    """Fig. 3c: 99th percentile of the wait against the aging quantile, at a quota of 5; input as for `quota_tail`."""
    chosen = select(sensitivity, "aging_tail", quota=DEFAULT_QUOTA)
    chart = curves(chosen.wait_p99_s, "aging_quantile", reference=["FCFS"])
    note = f"QBA at k = {DEFAULT_QUOTA}; dashed: without aging"
    return chart.properties(title=title("Aging threshold: tail", _seeds(chosen), note))


def prediction_errors(errors: xr.Dataset, direction: str) -> alt.HConcatChart:
    """Figs. 4 and 5: mean wait and both class-conditional tails against the rate of one kind of prediction error.

    errors: `wait_mean_s`, `wait_p99_true_short_s`, `wait_p99_true_long_s` over (direction, policy, error_rate, seed).
    direction: "short_to_long" (Fig. 4) or "long_to_short" (Fig. 5).
    """
    chosen = select(errors, "prediction_errors", direction=direction)
    heading, text = ERROR_TEXT[direction]
    x_title = direction.replace("_", "-") + " error rate"
    chosen = chosen.assign_coords(error_rate=chosen.error_rate.assign_attrs(long_name=x_title))
    panels = [curves(chosen[name], "error_rate", reference=["FCFS"], width=THIRD, height=160) for name in ERROR_PANELS]
    note = f"{text}; {_seeds(chosen)}; dashed: FCFS uses no labels"
    return alt.hconcat(*panels, spacing=16, title=title(heading, note, width=110))


def _against_quota(sensitivity: xr.Dataset, variable: str, text: str) -> alt.LayerChart:
    chosen = select(sensitivity, "quota figures", aging_quantile=DEFAULT_AGING_QUANTILE)
    chart = curves(chosen[variable], "quota", reference=["FCFS", "AA"])
    note = f"aging quantile {DEFAULT_AGING_QUANTILE:g}; dashed: without a quota"
    return chart.properties(title=title(text, _seeds(chosen), note))


def _seeds(dataset: xr.Dataset) -> str:
    n = dataset.sizes["seed"]
    return f"mean of {n} seeds and its 95 % confidence band" if n > 1 else "one seed"
