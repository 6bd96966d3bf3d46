"""What the commands print: the advice as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xarray as xr

from qba.advice.description import BINS, LOAD
from qba.advice.measures import Objective, measure, objective
from qba.requests import LONG_QUANTILE

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 18
COMPARED = ("mean", "p50", "p99_short", "p99_long", "ttft_p99")
NEXT_BEST = 3


def describe_text(about: xr.Dataset) -> str:
    """A description as `description.describe` returns it."""
    at = {name: about[name].item() for name in about.data_vars if not about[name].dims}
    slice_s = at["span_s"] / BINS
    levels = [("most" if level == 1 else f"{level:.0%}") for level in about.level.values]
    lines = [
        f"{at['requests']:,} requests in {duration(at['span_s'])}: {at['rate']:.3g} requests/s "
        f"({at['rate_low']:.3g} to {at['rate_high']:.3g} in nine of ten slices of {duration(slice_s)})",
        f"rate     {sparkline(about.rate_course.values)}",
        f"bursts   squared coefficient of variation of the gaps {at['interarrival_scv']:.2f} (1 is Poisson); "
        f"{at['tied_share']:.0%} arrive at the same time as the one before",
        "tokens       mean" + "".join(f"{level:>9}" for level in levels),
    ]
    for name in about.length.values:
        one = about.sel(length=name)
        cells = "".join(f"{x:>9,.0f}" for x in one.length_quantile.values)
        lines.append(f"{name:<9}{one.length_mean.item():>8,.0f}{cells}")
    lines.append(
        f"prompt and response: correlation {at['length_correlation']:.2f}, of ranks {at['rank_correlation']:.2f}"
    )
    lines.append(
        f"engine   {at['engine_rate']:.3g} requests/s of these lengths at most, "
        f"so the trace offers {at['offered_load']:.0%} of what it can serve"
    )
    lines.append(f"the longest {1 - LONG_QUANTILE:.0%} by   hold of all tokens   short first changes the mean wait by")
    for name in about.label.values:
        one = about.sel(label=name)
        lines.append(
            f"  {name + ' tokens':<18}{one.long_work.item():>16.0%}{one.predicted_change.item():>+17.0%} "
            f"(theory, load {LOAD:g})"
        )
    return "\n".join(lines)


def compare_text(study: xr.Dataset) -> str:
    """A comparison as `comparison.compare` returns it: below each row its 95 % intervals."""
    measures = [measure(name) for name in COMPARED]
    first = str(study.policy.values[0])
    heads = [f"{measures[0].name} wait", f"vs {first}", *(m.name for m in measures[1:])]
    wide = _width(study)
    lines = [
        "waits and times to first token in seconds, below them 95 % intervals",
        f"{'policy':<{wide}}" + "".join(f"{head:>{WIDTH}}" for head in heads) + f"{'tokens/s':>11}{'KV overflows':>14}",
    ]
    for name in study.policy.values:
        one = study.sel(policy=name)
        columns = [(one[m.variable].values, seconds) for m in measures]
        columns.insert(1, (one.wait_change.values, signed_percent))
        if name == first:
            columns[1] = (np.full(3, np.nan), signed_percent)
        lines.append(
            f"{name:<{wide}}"
            + "".join(f"{form(values[0]):>{WIDTH}}" for values, form in columns)
            + f"{one.throughput_tokens_per_s.item():>11,.0f}{int(one.kv_overflows):>14,}"
        )
        lines.append(" " * wide + "".join(f"{interval(values, form):>{WIDTH}}" for values, form in columns))
    heads = {
        "wait_max_s": "longest wait", "starved": f"wait > {study.attrs['starved_s']:g} s", "slowdown_mean": "wait/service",
        "slowdown_p99": "its P99", "jain_classes": "Jain, classes", "jain_clients": "Jain, clients",
        "goodput": f"ttft <= {study.attrs['ttft_bound_s']:g} s, /s",
    }  # fmt: skip
    lines.append(f"{'policy':<{wide}}" + "".join(f"{head:>{WIDTH}}" for head in heads.values()))
    for name in study.policy.values:
        one = study.sel(policy=name)
        cells = [f"{int(one[m]):,}" if m == "starved" else seconds(one[m].item()) for m in heads]
        lines.append(f"{name:<{wide}}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))
    return "\n".join(line.rstrip() for line in lines)


def tune_text(study: xr.Dataset) -> str:
    """A search as `tuning.tune` returns it: the advice, and a table of what it rests on."""
    wanted = objective(study.attrs["objective"])
    order = np.argsort(np.where(study["rank"] < 0, study.sizes["setting"], study["rank"]), kind="stable")
    ranked = [int(i) for i in order if study["rank"].values[i] >= 0]
    rule = (
        "; a bound is surely met where the upper end of its 95 % interval in the search keeps it"
        if wanted.bounds
        else ""
    )
    lines = [f"{wanted}   ({study.sizes['setting']} settings, seconds{rule})", advice(study, wanted)]
    baselines = [i for i, name in enumerate(study.policy.values) if name in ("FCFS", "PSF")]
    shown = dict.fromkeys((ranked or _nearest(study, wanted))[: 1 + NEXT_BEST] + baselines)
    measures = list(dict.fromkeys([wanted.measure, *(b.measure for b in wanted.bounds)]))
    heads = [f"{m.name}, {part}" for m in measures for part in study.part.values]
    lines.append(
        f"{'setting':<20}"
        + "".join(f"{head:>{WIDTH + 9}}" for head in heads)
        + ("   held out" if wanted.bounds else "")
    )
    for i in shown:
        one = study.isel(setting=i)
        cells = [one[m.variable].sel(part=part).values for m in measures for part in study.part.values]
        text = [f"{seconds(v[0])} [{interval(v, seconds)}]" if np.isfinite(v[1]) else seconds(v[0]) for v in cells]
        meets = bool(one.meets.sel(part="held out"))
        lines.append(
            f"{setting(one):<20}"
            + "".join(f"{t:>{WIDTH + 9}}" for t in text)
            + (f"   {'meets' if meets else 'misses'}" if wanted.bounds else "")
        )
    return "\n".join(lines)


def advice(study: xr.Dataset, wanted: Objective) -> str:
    """The answer in one line."""
    best = np.flatnonzero(study["rank"].values == 0)
    if not best.size:
        nearest = study.isel(setting=_nearest(study, wanted)[0])
        over = "; ".join(
            f"{setting(study.isel(setting=i))} {_over(study.isel(setting=i), wanted)}"
            for i, name in enumerate(study.policy.values)
            if name in ("FCFS", "PSF")
        )
        return f"no setting surely meets the bounds; nearest is {setting(nearest)}, {_over(nearest, wanted)}; {over}"
    one = study.isel(setting=int(best[0]))
    held = one.sel(part="held out", estimate="value")
    said = f"use {setting(one)}: {wanted.measure.name} {seconds(held[wanted.measure.variable].item())} s"
    for bound in wanted.bounds:
        said += f", {bound.measure.name} {seconds(held[bound.measure.variable].item())} s"
    said += " on the held-out windows"
    if one.policy.item() != "FCFS" and not one.gain.sel(estimate="low") > 0:
        said += ", where it is not surely better than FCFS"
    if not bool(held.meets):
        said += (
            f", which is {_over(one, wanted)} there: the bound holds in the search but not on requests it did not see"
        )
    return said


def capacity_text(study: xr.Dataset) -> str:
    """Capacities as `sustained.capacity` returns them."""
    own, full = study.attrs["own_rate"], study.attrs["full_rate"]
    lines = [
        f"highest rate with {study.attrs['slo']} s, the trace sped up as a whole (its own rate is {own:.3g} requests/s, "
        f"full batches serve {full:.3g})",
        f"{'policy':<{_width(study)}}{'requests/s':>13}{'95 % interval':>27}{'of full batches':>18}{'of its own rate':>18}",
    ]
    for name in study.policy.values:
        value, low, high = study.sustained_rate.sel(policy=name).values
        cells = _rate(value, study.rate.values)
        ends = (
            "" if np.isnan([low, high]).any() else f"{_rate(low, study.rate.values)}…{_rate(high, study.rate.values)}"
        )
        shares = (f"{value / full:.0%}", f"{value / own:.0%}") if 0 < value < np.inf else ("", "")
        lines.append(f"{name:<{_width(study)}}{cells:>13}{ends:>27}{shares[0]:>18}{shares[1]:>18}".rstrip())
    return "\n".join(lines)


def _width(study: xr.Dataset) -> int:
    """Of the column of policies."""
    return max(8, 2 + max(map(len, study.policy.values)))


def _rate(value: float, tried: np.ndarray) -> str:
    """A sustained rate, or on which side of those tried it is."""
    if value == 0:
        return f"below {tried[0]:.3g}"
    return f"above {tried[-1]:.3g}" if np.isinf(value) else f"{value:.3g}"


def setting(one: xr.Dataset) -> str:
    """A row of a search by name."""
    parameters = [
        f"{sign}={one[name].item():g}"
        for sign, name in (("k", "quota"), ("γ", "aging_quantile"))
        if np.isfinite(one[name])
    ]
    return f"{one.policy.item()}{parameters and f' {chr(32).join(parameters)}' or ''}"


def duration(span_s: float) -> str:
    """Seconds in the units that people use."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if span_s >= 2 * size:
            return f"{span_s / size:.3g} {unit}"
    return f"{span_s:.3g} s"


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of bars, from 0 to the largest."""
    most = max(values)
    return "".join(BARS[min(len(BARS) - 1, int(len(BARS) * value / most))] if most else BARS[0] for value in values)


def seconds(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def signed_percent(value: float) -> str:
    return f"{value:+.0%}" if np.isfinite(value) else ""


def interval(values: Iterable[float], form) -> str:
    """The ends of value, low, high; nothing where there are none."""
    _, low, high = values
    return f"{form(low)}…{form(high)}" if np.isfinite([low, high]).all() else ""


def _nearest(study: xr.Dataset, wanted: Objective) -> list[int]:
    """Settings in the order of how far they are over the bounds in the search, the worst bound counting."""
    part = study.sel(part="search", estimate="high")
    if not wanted.bounds:
        return [int(i) for i in np.argsort(part[wanted.measure.variable].values, kind="stable")]
    over = [part[b.measure.variable].values / max(b.limit, 1e-9) for b in wanted.bounds]
    return [int(i) for i in np.argsort(np.max(over, axis=0), kind="stable")]


def _over(one: xr.Dataset, wanted: Objective) -> str:
    """How far a setting is over its bounds on the held-out windows."""
    held = one.sel(part="held out", estimate="value")
    values = [(b, held[b.measure.variable].item()) for b in wanted.bounds]
    return " and ".join(
        f"{b.measure.name} {seconds(v)} s" + (f" ({seconds(v - b.limit)} s over)" if v > b.limit else " (within)")
        for b, v in values
    )
