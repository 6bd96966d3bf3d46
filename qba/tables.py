"""Tables as lines of text, for notebooks and the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr

from qba.azure import table2


def table2_text(study: xr.Dataset) -> str:
    """Table II of a study as lines of text; a study over traces and labels gives one block for each pair."""
    table = table2(study)
    lines = [study.attrs["traffic"]]
    if "dropped_requests" in study:
        dropped = ", ".join(f"{int(n)} of {name}" for name, n in zip(study.trace.values, study.dropped_requests.values))
        lines.append(f"requests left out, their prompts beyond the KV-safe limit: {dropped}")
    pairs = [()] if "trace" not in study.dims else [(t, n) for t in study.trace.values for n in study.label.values]
    for pair in pairs:
        part = table.sel(dict(zip(("trace", "label"), pair)))
        lines += [f"{pair[0]}, long by {pair[1]} tokens"] if pair else []
        lines += ["  policy   mean wait   vs FCFS   P99 short   P99 long   tokens/s   utilisation   overflows"]
        for name in part.policy.values:
            row = {
                variable: part[variable].sel(policy=name).item() for variable in part if "policy" in part[variable].dims
            }
            lines.append(
                f"  {name:<6}{row['wait_mean_s']:>10.3f} s{row['wait_change']:>+10.0%}"
                f"{row['wait_p99_true_short_s']:>10.2f} s{row['wait_p99_true_long_s']:>9.2f} s"
                f"{row['throughput_tokens_per_s']:>11,.0f}{row['batch_utilization']:>14.2f}{row['kv_overflows']:>12.0f}"
            )
    return "\n".join(lines)


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
