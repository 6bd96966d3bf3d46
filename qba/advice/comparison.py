"""All policies on one trace: waits with intervals, throughput, KV use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from qba.advice.measures import attrs, estimates, measure, window_edges
from qba.advice.replays import side_by_side
from qba.config import EngineConfig
from qba.engine.simulate import SCALARS, run_scalars, serve
from qba.fairness import FAIRNESS, STARVED_S, TTFT_BOUND_S, fairness
from qba.intervals import ESTIMATE, function_interval, stacked
from qba.policies import PAPER, Policy
from qba.requests import Requests
from qba.sweeps import check_policies, policy_labels

MEASURES = tuple(
    measure(name)
    for name in (
        *("mean", "p50", "p95", "p99", "mean_short", "p50_short", "p99_short", "mean_long", "p50_long", "p99_long"),
        *("ttft_mean", "ttft_p50", "ttft_p99", "latency_mean", "latency_p50", "latency_p99"),
    )
)
BACKLOG = 0.05
"""Share of the trace's span that the engine may go on after the last arrival before it counts as overloaded."""
SERVICES = 5
"""Mean service times that it may go on in any case, since those who come last must be served."""
ALIKE = 0.5
"""Correlation of neighbouring windows from which on they can hardly be called independent."""


def compare(
    requests: Requests,
    policies: Sequence[Policy] = tuple(cls() for cls in PAPER),
    config: EngineConfig = EngineConfig(),
    *,
    progress: bool = True,
) -> xr.Dataset:
    """Replay a trace in one piece under each policy.

    Parameters
    ----------
    requests : Requests
    policies : sequence of Policy
    config : EngineConfig
    progress : bool
        Show a progress bar.

    Returns
    -------
    xarray.Dataset
        Dimensions (policy, estimate), the latter value, low, high (95 %, see `measures.estimate`): mean, median, P95 and
        P99 of the wait, over all and by true class, time to first token and latency; `wait_change`, of the mean wait
        against the first policy's, paired over windows. By policy the scalars of `qba.simulate` and the measures of
        `qba.fairness.fairness`. By (policy, window):
        `window_wait_s`, the mean wait over a window's requests, at `window_time_s`, its mean arrival.

    Raises
    ------
    InputError
        If a request is longer than the engine's KV limits allow, or a policy is named twice.
    """
    policies = check_policies(policies)
    edges = window_edges(len(requests))

    def look(policy: Policy) -> tuple:
        run = serve(requests, policy, config)
        waits = np.add.reduceat(run.start_s - requests.arrival_s, edges[:-1]) / np.diff(edges)
        scalars = run_scalars(requests, policy, config, run) | fairness(requests, run)
        return estimates(requests, run, MEASURES, edges), waits, scalars

    found = side_by_side(look, [(policy,) for policy in policies], len(requests), progress)
    values = np.array([values for values, _, _ in found])
    waits = xr.DataArray(np.array([waits for _, waits, _ in found]), dims=("policy", "window"))
    change = function_interval(
        lambda mine, first: mine / first - 1, waits, waits[0].drop_vars("policy", errors="ignore"), dim="window"
    )
    times = np.add.reduceat(requests.arrival_s, edges[:-1]) / np.diff(edges) - requests.arrival_s[0]
    names = policy_labels(policies)
    variables = {m.variable: (("policy", "estimate"), values[:, i], attrs("s", m.text)) for i, m in enumerate(MEASURES)}
    variables["wait_change"] = (
        ("policy", "estimate"),
        stacked(change).transpose("policy", "estimate").values,
        attrs("1", f"change of the mean waiting time against {names[0]}"),
    )
    for name, (units, text) in (SCALARS | FAIRNESS).items():
        variables[name] = ("policy", [scalars[name] for _, _, scalars in found], attrs(units, text))
    variables["window_wait_s"] = (
        ("policy", "window"),
        waits.values,
        attrs("s", "mean waiting time of the window's requests"),
    )
    return xr.Dataset(
        variables,
        {
            "policy": ("policy", names, attrs("1", "scheduling policy")),
            "estimate": ("estimate", list(ESTIMATE), attrs("1", "estimate, and both ends of its 95 % interval")),
            "window_time_s": ("window", times, attrs("s", "mean arrival of the window's requests, since the first")),
        },
        {
            "requests": len(requests),
            "span_s": float(requests.arrival_s[-1] - requests.arrival_s[0]),
            "policies": ", ".join(map(repr, policies)),
            "engine": repr(config),
            "starved_s": STARVED_S,
            "ttft_bound_s": TTFT_BOUND_S,
        },
    )


def remarks(study: xr.Dataset) -> list[str]:
    """What the figures do not say by themselves, in lines of plain words; study: as `compare` returns it."""
    lines = []
    behind = float(study.makespan_s.min()) - study.attrs["span_s"]
    service = float((study.latency_mean_s - study.wait_mean_s).sel(estimate="value").max())
    if behind > BACKLOG * study.attrs["span_s"] and behind > SERVICES * service:
        lines.append(
            f"the engine cannot keep up: it goes on for {behind:,.0f} s after the last arrival, so waits grow with the "
            "length of the trace: they compare policies, but no wait is typical"
        )
    if study.sizes["window"] < 2:
        lines.append(f"too few requests ({study.attrs['requests']:,}) for intervals")
    elif _alike(study.window_wait_s.isel(policy=0).values) > ALIKE:
        lines.append("neighbouring windows are alike (slow swings): intervals are narrower than they should be")
    if study.kv_overflows.max() > 0:
        lines.append(
            f"the KV cache overflows in up to {int(study.kv_overflows.max()):,} batches: a real engine would evict requests "
            "there (--set on_overflow=preempt does)"
        )
    return lines


def _alike(series: np.ndarray) -> float:
    """Correlation of neighbours; 0 where the series never varies."""
    return (
        float(np.corrcoef(series[:-1], series[1:])[0, 1])
        if len(series) > 3 and series[:-1].std() * series[1:].std()
        else 0.0
    )
