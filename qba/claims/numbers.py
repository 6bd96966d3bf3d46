"""The paper's numbers, one row each. To add one, add a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import xarray as xr

from qba.claims.evidence import NEEDS_DATA, NOT_REPRODUCED, REPRODUCED, Finding, grade_number, number
from qba.claims.rows import CLAIMS, L99, REFERENCE_RATE, S99, W, Claim, Results
from qba.intervals import ESTIMATE, mean_interval
from qba.tables import table2_intervals


def at_reference(variable: str, policy: str):
    return lambda r: r["load_sweep"][variable].sel(policy=policy, rate=REFERENCE_RATE)


def with_errors(variable: str, policy: str, direction: str, error_rate: float):
    return lambda r: r["prediction_errors"][variable].sel(policy=policy, direction=direction, error_rate=error_rate)


Columns = Callable[[Results], xr.DataArray]


@dataclass(frozen=True)
class SimulatedRow:
    """A number of the paper's synthetic study: a function of means over seeds.

    ``columns`` take one value a seed each from the results; ``function`` works element by element on their means.
    """

    id: str
    text: str
    paper: float
    unit: str
    function: Callable[..., xr.DataArray]
    columns: tuple[Columns, ...]


SIMULATED: dict[str, SimulatedRow] = {}
"""N01 to N17, by id: what a workload can be held against (`qba.calibrate`)."""


def simulated_row(
    id: str, text: str, paper: float, *columns: Columns, function: Callable = lambda mean: mean, unit: str = "s"
) -> None:
    row = SIMULATED[id] = SimulatedRow(id, text, paper, unit, function, columns)
    CLAIMS.append(Claim(id, text, paper, lambda r: number(paper, row.function, *(c(r) for c in row.columns)), unit))


simulated_row("N01", "PSF W", 0.83, at_reference(W, "PSF"))
simulated_row("N02", "PSF S99", 1.24, at_reference(S99, "PSF"))
simulated_row("N03", "PSF L99", 11.10, at_reference(L99, "PSF"))
simulated_row("N04", "QBA W", 1.42, at_reference(W, "QBA"))
simulated_row("N05", "QBA S99", 3.44, at_reference(S99, "QBA"))
simulated_row("N06", "QBA L99", 7.64, at_reference(L99, "QBA"))
simulated_row("N07", "PSF S99 at ε_SL = 0.05", 7.03, with_errors(S99, "PSF", "short_to_long", 0.05))
simulated_row("N08", "QBA W at ε_SL = 0.10", 1.13, with_errors(W, "QBA", "short_to_long", 0.10))
simulated_row("N09", "QBA S99 at ε_SL = 0.10", 7.59, with_errors(S99, "QBA", "short_to_long", 0.10))
simulated_row("N10", "QBA L99 at ε_SL = 0.10", 9.45, with_errors(L99, "QBA", "short_to_long", 0.10))
simulated_row("N11", "PSF W at ε_LS = 0.4", 0.91, with_errors(W, "PSF", "long_to_short", 0.4))
simulated_row("N12", "PSF L99 at ε_LS = 0.4", 17.29, with_errors(L99, "PSF", "long_to_short", 0.4))
simulated_row("N13", "QBA W at ε_LS = 0.4", 1.92, with_errors(W, "QBA", "long_to_short", 0.4))
simulated_row("N14", "QBA S99 at ε_LS = 0.4", 5.23, with_errors(S99, "QBA", "long_to_short", 0.4))
simulated_row("N15", "QBA L99 at ε_LS = 0.4", 5.27, with_errors(L99, "QBA", "long_to_short", 0.4))


simulated_row(
    "N16",
    "QBA's cut of L99 against PSF at ε_LS = 0.4",
    70,
    *(with_errors(L99, policy, "long_to_short", 0.4) for policy in ("QBA", "PSF")),
    function=lambda qba, psf: 100 * (1 - qba / psf),
    unit="%",
)
simulated_row(
    "N17",
    "share of PSF's mean gain over FCFS that QBA keeps",
    59,
    *(at_reference(W, policy) for policy in ("FCFS", "PSF", "QBA")),
    function=lambda fcfs, psf, qba: 100 * (fcfs - qba) / (fcfs - psf),
    unit="%",
)


# The paper's trace cannot be had here: these rows show what a stand-in gives, and stay "needs data" whatever it gives.


def trace_row(id: str, text: str, paper: float | str, value: Callable[[xr.Dataset], tuple], unit: str = "s") -> None:
    """A row whose ``value`` gives number or text, and both ends of its 95 % interval over windows (or None)."""

    def check(r: Results) -> Finding:
        ours, low, high = value(r["azure_standin"])
        grade = None if isinstance(ours, str) else grade_number(ours, paper) if paper else grade_zero(ours)
        note = "value of a generated stand-in for the 2024 trace week" + (f"; if it counted: {grade}" if grade else "")
        return Finding(NEEDS_DATA, ours, note=note, low=low, high=high, would_be=grade)

    CLAIMS.append(Claim(id, text, paper, check, unit))


def grade_zero(ours: float) -> str:
    """A count of none is met exactly or not at all."""
    return NOT_REPRODUCED if ours else REPRODUCED


def of_policy(variable: str, policy: str, factor: float = 1.0):
    return lambda study: _three(factor * table2_intervals(study)[variable].sel(policy=policy))


def _three(estimate: xr.DataArray) -> tuple[float, float, float]:
    return tuple(float(x) for x in estimate.values)


def _throughput(study: xr.Dataset) -> tuple[float, float, float]:
    return tuple(map(float, mean_interval(study.throughput_tokens_per_s.mean("policy"), "window")))


def _utilization(study: xr.Dataset) -> tuple[str, float, float]:
    """The range over policies; its interval reaches from the least one's low end to the greatest one's high end."""
    by_policy = table2_intervals(study).batch_utilization
    value, low, high = (by_policy.sel(estimate=name) for name in ESTIMATE)
    return f"{float(value.min()):.2f}–{float(value.max()):.2f}", float(low.min()), float(high.max())


def _overflows(study: xr.Dataset) -> tuple[float, None, None]:
    return float(study.kv_overflows.sum()), None, None  # a count


trace_row("N18", "Azure: PSF W against FCFS", -31, of_policy("wait_change", "PSF", 100), "%")
trace_row("N19", "Azure: QBA W against FCFS", -18, of_policy("wait_change", "QBA", 100), "%")
trace_row("N20", "Azure: FCFS L99, median over windows", 0.77, of_policy(L99, "FCFS"))
trace_row("N21", "Azure: PSF L99, median over windows", 2.10, of_policy(L99, "PSF"))
trace_row("N22", "Azure: QBA L99, median over windows", 1.45, of_policy(L99, "QBA"))
trace_row("N23", "Azure: throughput, mean over policies", 2.47e4, _throughput, "tokens/s")
trace_row("N24", "Azure: batch utilisation, range over policies", "0.89–0.91", _utilization, "")
trace_row("N25", "Azure: KV overflows over all windows and policies", 0, _overflows, "")
trace_row(
    "N26", "Azure: mean SCV of inter-arrivals", 2.9, lambda study: _three(table2_intervals(study).interarrival_scv), ""
)
