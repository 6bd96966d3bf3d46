"""Tables as lines of text, for notebooks and the terminal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import xarray as xr

from qba.azure import table2
from qba.intervals import function_interval, mean_interval, median_interval, stacked
from qba.metrics import SUMMARY
from qba.precision import PAIRINGS, PUBLISHED_S, WIDTH, settling


def table2_intervals(study: xr.Dataset) -> xr.Dataset:
    """`qba.azure.table2` with 95 % intervals over windows, along the dimension ``estimate``: value, low, high.

    Windows are paired over policies. Means have Student's interval, the change against FCFS the jackknife's, medians
    one between order statistics; KV overflows are a count and have none. The windows are taken for independent: in a
    real trace neighbours are alike, and the truth may lie further off than these say.
    """
    table = table2(study)
    fcfs = study.wait_mean_s.sel(policy="FCFS", drop=True)
    found = {
        "wait_change": function_interval(lambda mine, theirs: mine / theirs - 1, study.wait_mean_s, fcfs, dim="window")
    }
    for name in ("wait_mean_s", "throughput_tokens_per_s", "batch_utilization", "interarrival_scv"):
        found[name] = mean_interval(study[name], "window")
    for name in ("wait_p99_true_short_s", "wait_p99_true_long_s"):
        found[name] = median_interval(study[name], "window")
    ends = xr.Dataset({name: stacked(interval).drop_attrs() for name, interval in found.items()})
    return ends.assign(kv_overflows=table.kv_overflows).assign_attrs(study.attrs)


TABLE2_COLUMNS = {
    "wait_mean_s": ("mean wait (s)", ".3f"),
    "wait_change": ("vs FCFS", "+.0%"),
    "wait_p99_true_short_s": ("P99 short (s)", ".2f"),
    "wait_p99_true_long_s": ("P99 long (s)", ".2f"),
    "throughput_tokens_per_s": ("tokens/s", ",.0f"),
    "batch_utilization": ("utilisation", ".3f"),
}


def table2_text(study: xr.Dataset) -> str:
    """Table II of a study as lines of text, under each row its 95 % intervals over windows.

    A study over traces and labels gives one block for each pair.
    """
    table = table2_intervals(study)
    lines = [study.attrs["traffic"]]
    if "dropped_requests" in study:
        dropped = ", ".join(f"{int(n)} of {name}" for name, n in zip(study.trace.values, study.dropped_requests.values))
        lines.append(f"requests left out, their prompts beyond the KV-safe limit: {dropped}")
    pairs = [()] if "trace" not in study.dims else [(t, n) for t in study.trace.values for n in study.label.values]
    for pair in pairs:
        part = table.sel(dict(zip(("trace", "label"), pair)))
        lines += [f"{pair[0]}, long by {pair[1]} tokens"] if pair else []
        lines += ["  policy" + "".join(f"{text:>15}" for text, _ in TABLE2_COLUMNS.values()) + "   overflows"]
        for name in part.policy.values:
            row = part.sel(policy=name)
            cells = {
                column: [f"{x:{form}}" for x in row[column].values] for column, (_, form) in TABLE2_COLUMNS.items()
            }
            lines.append(
                f"  {name:<6}" + "".join(f"{v:>15}" for v, _, _ in cells.values()) + f"{row.kv_overflows:>12.0f}"
            )
            lines.append(
                " " * 8 + "".join(f"{f'{low}…{high}' if low != high else '':>15}" for _, low, high in cells.values())
            )
    return "\n".join(lines)


HORIZON_COLUMN = 25


def horizon_text(study: xr.Dataset, horizon_s: float = PUBLISHED_S) -> str:
    """What the mean wait at one horizon is worth, by load and policy: see `qba.precision.settling`.

    study: as `qba.precision.horizon_study` returns it. The load is relative to the capacity; the growth is the exponent
    between the two longest horizons. 95 % intervals in brackets.
    """
    verdicts = settling(study, horizon_s)
    capacity = ", ".join(f"{p} {_bracketed(study.capacity.sel(policy=p), '.1f')}" for p in study.policy.values)
    longest = study.isel(horizon_s=-1)
    heads = (f"W at {horizon_s:g} s", f"W at {longest.horizon_s.item():g} s", "growth")
    seeds = ", ".join(f"{n} to {h:g} s" for h, n in zip(study.horizon_s.values, study.replications.values))
    lines = [f"seeds: {seeds}", f"capacity (requests/s): {capacity}"]
    lines += ["rate  policy  load" + "".join(f"{head:>{HORIZON_COLUMN}}" for head in heads) + "   the former is"]
    for rate in study.rate.values:
        for policy in study.policy.values:
            here = {"rate": rate, "policy": policy}
            load = rate / study.capacity.sel(policy=policy, estimate="value").item()
            cells = (
                _bracketed(study.wait_mean_s.sel(here).sel(horizon_s=horizon_s), ".2f"),
                _bracketed(longest.wait_mean_s.sel(here), ".2f"),
                _bracketed(longest.growth.sel(here), ".2f"),
            )
            text = "".join(f"{cell:>{HORIZON_COLUMN}}" for cell in cells)
            lines.append(f"{rate:>4g}  {policy:<6}{load:>6.2f}{text}   {verdicts.sel(here).item()}")
    lines += ["share of PSF's gain over FCFS in W that QBA keeps"]
    for rate in study.rate.values:
        kept = (_bracketed(part.kept_gain.sel(rate=rate), ".2f") for part in (study.sel(horizon_s=horizon_s), longest))
        lines.append(f"{rate:>4g}" + " " * 14 + "".join(f"{cell:>{HORIZON_COLUMN}}" for cell in kept))
    return "\n".join(lines)


def seeds_text(study: xr.Dataset, statistics: Sequence[str] = ("wait_mean_s", "wait_p99_s")) -> str:
    """How many seeds, by statistic: for a half-width, and to decide the order of each two policies.

    study: as `qba.precision.seeds_study` returns it. Two numbers: with the same seeds under both, and with others.
    """
    lines = [f"{'':<24}{'same seeds':>12}{'other seeds':>13}"]
    policies = [str(name) for name in study.policy.values]
    for statistic in statistics:
        part = study.sel(statistic=statistic)
        lines.append(SUMMARY[statistic][1])
        for name in policies:
            one = part.seeds_for_width.sel(policy=name, quantity="mean").item()
            lines.append(f"  {f'mean of {name} to {WIDTH:.0%}':<22}{_count(one):>12}")
        for name in policies[1:]:
            pair = [
                part.seeds_for_width.sel(policy=name, quantity=f"ratio to FCFS, {which}").item() for which in PAIRINGS
            ]
            lines.append(f"  {f'{name} over FCFS to {WIDTH:.0%}':<22}{_count(pair[0]):>12}{_count(pair[1]):>13}")
        for first, second in itertools.combinations(policies, 2):
            pair = [part.seeds_to_decide.sel(policy=first, other=second, pairing=which).item() for which in PAIRINGS]
            lines.append(f"  {f'{first} or {second} lower':<22}{_count(pair[0]):>12}{_count(pair[1]):>13}")
    return "\n".join(lines)


def _bracketed(estimate: xr.DataArray, form: str) -> str:
    value, low, high = estimate.values
    return f"{value:{form}} [{low:{form}}…{high:{form}}]"


def _count(seeds: float) -> str:
    """A number of seeds; beyond ten thousand only that it is."""
    return "-" if seeds != seeds else ">10,000" if seeds > 10_000 else f"{seeds:,.0f}"


SUMMARY_COLUMNS = {
    "wait_mean_s": "mean wait",
    "wait_p50_s": "median",
    "wait_p99_s": "P99",
    "wait_p99_true_short_s": "P99 short",
    "wait_p99_true_long_s": "P99 long",
    "ttft_p99_s": "TTFT P99",
}


def summaries_text(summaries: Mapping[str, xr.Dataset]) -> str:
    """Summaries by policy name, one line each."""
    lines = ["seconds " + "".join(f"{text:>11}" for text in SUMMARY_COLUMNS.values()) + "   tokens/s  overflows"]
    for name, summary in summaries.items():
        waits = "".join(f"{summary[column].item():>11.3f}" for column in SUMMARY_COLUMNS)
        throughput, overflows = summary.throughput_tokens_per_s.item(), summary.kv_overflows.item()
        lines.append(f"{name:<8}{waits}{throughput:>11,.0f}{overflows:>11,}")
    return "\n".join(lines)


def families_text(study: xr.Dataset) -> str:
    """The families of `qba.calibrate.identify.calibration_study` at their best: parameters ± 95 %, and how near they come."""
    names = [str(name) for name in study.parameter.values]
    lines = []
    for family in study.family.values:
        one = study.sel(family=family)
        lines.append(
            f"{family}: {int(one.free)} free, rms {float(one.rms):.3f}, sum of squares {float(one.cost):.1f}, "
            f"paired {float(one.paired_chi_square):.0f}"
        )
        values = [
            (name, float(one.parameter_value.sel(parameter=name)), float(one.parameter_error.sel(parameter=name)))
            for name in names
        ]
        lines.append(
            "    "
            + ", ".join(f"{name} {v:.4g}" + (f" ± {e * v:.2g}" if e == e else "") for name, v, e in values if v == v)
        )
    return "\n".join(lines)


def verdicts_text(study: xr.Dataset) -> str:
    """Of `qba.robustness.robustness_study`: how many claims each reading reproduces, and how near it comes to the numbers."""
    lines = [f"{'reading':<24}{'reproduced':>11}{'close':>7}{'not':>5}{'rms':>8}    mean lengths fitted: the same"]
    for reading in study.reading.values:
        cells = []
        for workload in study.workload.values:
            one = study.sel(workload=workload, reading=reading)
            if float(one.rms) == float(one.rms):
                counts = [int((one.verdict == code).sum()) for code in range(3)]
                cells.append("{:>11}{:>7}{:>5}{:>8.3f}".format(*counts, float(one.rms)))
        lines.append(f"{reading:<24}" + "    ".join(cells))
    return "\n".join(lines)
