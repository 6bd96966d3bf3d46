"""How the engine works: batches on a time line, and the lengths of the requests it serves."""

from __future__ import annotations

import math

import altair as alt
import numpy as np
import xarray as xr

from qba.config import EngineConfig
from qba.errors import InputError
from qba.figures.style import INK, MUTED, data, title
from qba.requests import Requests

STEPS = 400
"""Steps on a time line: beyond about one a pixel, neighbouring batches are joined."""
WIDTH = 560
TOKEN_COLORS = {"decode": "#6a51a3", "prefill": "#b9b5db"}
CLASS_COLORS = {"short": "#e69f00", "long": "#8c510a"}


def batch_timeline(
    batches: xr.Dataset, config: EngineConfig = EngineConfig(), start_s: float | None = None, end_s: float | None = None
) -> alt.VConcatChart:
    """Batches on a time line: tokens against the budget, live KV against its limits, queues, promotions.

    batches: as `qba.simulate(..., record=True)` returns it, over `batch`. config: the engine that served them. start_s,
    end_s: seconds of simulated time to show; default: all. Where there are more than `STEPS` batches, neighbours are
    joined: the mean of their tokens, the largest KV and queues, the sum of promotions.

    Raises InputError where no batch starts in the range.
    """
    start = float(batches.time_s[0]) if start_s is None else start_s
    end = float(batches.time_s[-1] + batches.duration_s[-1]) if end_s is None else end_s
    inside = np.flatnonzero((batches.time_s.values >= start) & (batches.time_s.values < end))
    chosen = batches.isel(batch=inside)
    if not inside.size:
        raise InputError(f"batch_timeline: no batch starts between start_s = {start:g} and end_s = {end:g}")
    joined = math.ceil(inside.size / STEPS)
    steps = _steps(chosen, joined, goes_on=inside[-1] + 1 < batches.sizes["batch"])
    scale = alt.Scale(domain=[start, end], nice=False)
    x = alt.X("time_s:Q", title=None, scale=scale, axis=alt.Axis(labels=False, ticks=False))
    last = alt.X("time_s:Q", title="Time (s)", scale=scale)
    note = "each step is one batch"
    if joined > 1:
        note = f"each step joins {joined} batches: mean tokens, largest KV and queues"
    return (
        alt.vconcat(
            _tokens(steps, x, config), _kv(steps, x, config), _queues(steps, x), _promotions(steps, last), spacing=8
        )
        .resolve_scale(color="independent")
        .properties(title=title("Batch by batch", note, width=110))
    )


def lengths(requests: Requests) -> alt.HConcatChart:
    """Prompt and response lengths of the requests, by true class, with the threshold between the classes."""
    panels = [
        _histogram(requests.prompt_tokens, requests.true_long, "Prompt length (tokens)"),
        _histogram(requests.response_tokens, requests.true_long, "Response length (tokens)"),
    ]
    long, short = requests.response_tokens[requests.true_long], requests.response_tokens[~requests.true_long]
    # Classes by another rule than the response's length have no single threshold to show.
    if long.size and short.size and short.max() < long.min():
        threshold = alt.Chart(data({"tokens": [(int(short.max()) + int(long.min())) / 2]}))
        panels[1] += threshold.mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1.2).encode(alt.X("tokens:Q"))
        note = f"dashed: responses above {int(short.max()):,} tokens are long"
    else:
        note = "the classes are not split by response length"
    share = f"{len(requests):,} requests, {requests.true_long.mean():.1%} of them long; {note}"
    return alt.hconcat(*panels, spacing=24, title=title("Lengths", share, width=110))


def _steps(batches: xr.Dataset, joined: int, goes_on: bool) -> dict[str, np.ndarray]:
    """Columns over steps of `joined` batches, and a row of zeros wherever idleness follows.

    At the end the last step is repeated if the run goes on beyond the range, so that no curve falls to zero there.
    """
    first = np.arange(0, batches.sizes["batch"], joined)
    time = batches.time_s.values
    last = np.append(first[1:], len(time)) - 1
    finish = time[last] + batches.duration_s.values[last]
    columns = {"time_s": time[first]}
    for name in ("decode_tokens", "prefill_tokens"):
        columns[name] = np.add.reduceat(batches[name].values, first) / (last - first + 1)
    for name in ("live_kv_tokens", "waiting_short", "waiting_long"):
        columns[name] = np.maximum.reduceat(batches[name].values, first)
    columns["promotions"] = np.add.reduceat(batches["promotions"].values, first)
    closed = np.flatnonzero(np.append(time[first[1:]] > finish[:-1] + 1e-9, True))
    rest = np.append(np.zeros(len(closed) - 1), float(goes_on))
    closing = {name: finish[closed] if name == "time_s" else rest * columns[name][closed] for name in columns}
    closing["promotions"] = np.zeros(len(closed))
    return {name: np.insert(column.astype(float), closed + 1, closing[name]) for name, column in columns.items()}


def _long_form(steps: dict[str, np.ndarray], columns: dict[str, str], key: str) -> alt.InlineData:
    """The named columns below each other, with `key` saying which."""
    n = len(steps["time_s"])
    return data(
        {
            "time_s": np.tile(steps["time_s"], len(columns)),
            key: np.repeat(list(columns.values()), n),
            "value": np.concatenate([steps[name] for name in columns]),
        }
    )


def _color(key: str, colors: dict[str, str], text: str) -> alt.Color:
    # Right of the words beside the limits.
    legend = alt.Legend(orient="right", direction="vertical", title=text, titleFontWeight="normal", offset=62)
    return alt.Color(f"{key}:N", scale=alt.Scale(domain=list(colors), range=list(colors.values())), legend=legend)


def _limit(value: float, text: str, dash: list[int]) -> alt.LayerChart:
    base = alt.Chart(data({"limit": [float(value)], "text": [text]})).encode(alt.Y("limit:Q"))
    rule = base.mark_rule(color=INK, strokeDash=dash)
    return rule + base.mark_text(align="left", dx=5, fontSize=10, color=INK).encode(x=alt.value(WIDTH), text="text:N")


def _tokens(steps: dict[str, np.ndarray], x: alt.X, config: EngineConfig) -> alt.LayerChart:
    table = _long_form(steps, {"decode_tokens": "decode", "prefill_tokens": "prefill"}, "phase")
    area = (
        alt.Chart(table)
        .mark_area(interpolate="step-after", clip=True)
        .encode(
            x,
            alt.Y("value:Q", title=["Tokens", "per batch"], stack=True),
            _color("phase", TOKEN_COLORS, "Phase"),
            order="phase:N",
        )
    )
    return alt.layer(area, _limit(config.token_budget, "budget", [4, 3])).properties(width=WIDTH, height=80)


def _kv(steps: dict[str, np.ndarray], x: alt.X, config: EngineConfig) -> alt.LayerChart:
    table = data({"time_s": steps["time_s"], "value": steps["live_kv_tokens"]})
    line = {"color": "#4f7566", "strokeWidth": 1}
    area = alt.Chart(table).mark_area(interpolate="step-after", color="#9fb8ad", line=line, clip=True)
    area = area.encode(x, alt.Y("value:Q", title=["Live KV", "(tokens)"]))
    limits = _limit(config.kv_safe_tokens, "KV-safe", [4, 3]), _limit(config.kv_capacity, "capacity", [1, 0])
    return alt.layer(area, *limits).properties(width=WIDTH, height=80)


def _queues(steps: dict[str, np.ndarray], x: alt.X) -> alt.Chart:
    table = _long_form(steps, {"waiting_short": "short", "waiting_long": "long"}, "predicted")
    line = alt.Chart(table).mark_line(interpolate="step-after", strokeWidth=1.5, clip=True)
    y = alt.Y("value:Q", title=["Requests", "waiting"])
    line = line.encode(x, y, _color("predicted", CLASS_COLORS, "Predicted"))
    return line.properties(width=WIDTH, height=80)


def _promotions(steps: dict[str, np.ndarray], x: alt.X) -> alt.LayerChart:
    hit = steps["promotions"] > 0
    table = data({name: steps[name][hit] for name in ("time_s", "promotions")})
    mark = alt.Chart(table).mark_tick(color=CLASS_COLORS["long"], thickness=1.5, height=14, orient="vertical")
    mark = mark.encode(x, tooltip=["time_s:Q", "promotions:Q"])
    count = int(steps["promotions"].sum())
    text = alt.Chart(data({"text": [f"{count:,} promotion{'' if count == 1 else 's'}"]}))
    text = text.mark_text(align="left", dx=5, fontSize=10, color=MUTED)
    return alt.layer(mark, text.encode(x=alt.value(WIDTH), text="text:N")).properties(width=WIDTH, height=18)


def _histogram(tokens: np.ndarray, true_long: np.ndarray, x_title: str) -> alt.LayerChart:
    edges = np.histogram_bin_edges(tokens, bins=min(40, int(np.ptp(tokens)) + 1))
    counts = {name: np.histogram(tokens[mask], edges)[0] for name, mask in (("short", ~true_long), ("long", true_long))}
    bottom = {"short": np.zeros(len(edges) - 1, dtype=int), "long": counts["short"]}
    columns = {
        "tokens": np.tile(edges[:-1], 2),
        "until": np.tile(edges[1:], 2),
        "class": np.repeat(list(counts), len(edges) - 1),
        "requests": np.concatenate(list(counts.values())),
        "bottom": np.concatenate([bottom[name] for name in counts]),
        "top": np.concatenate([bottom[name] + counts[name] for name in counts]),
    }
    table = data({name: column[columns["requests"] > 0] for name, column in columns.items()})
    color = alt.Color("class:N", scale=alt.Scale(domain=list(CLASS_COLORS), range=list(CLASS_COLORS.values())))
    bars = (
        alt.Chart(table)
        .mark_rect(stroke="white", strokeWidth=0.4)
        .encode(
            alt.X("tokens:Q", title=x_title, axis=alt.Axis(tickCount=5)),
            alt.X2("until:Q"),
            alt.Y("bottom:Q", title="Requests"),
            alt.Y2("top:Q"),
            color,
            tooltip=["class:N", "tokens:Q", "until:Q", "requests:Q"],
        )
    )
    return alt.layer(bars).properties(width=240, height=150)
