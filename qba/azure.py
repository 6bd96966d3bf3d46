"""Replaying production traces: the stand-in for the week behind the paper's Table II, and the public traces of 2023.

The traces of 2023 do not have the load that the paper reports (772 tokens per request, gaps of squared coefficient of
variation 2.9), however they are windowed; the week of 2024 agrees with it but is not to be had everywhere. So Table II
is computed on a stand-in (`qba.traces.standin_2024`), and the real traces of 2023 beside it, as what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import xarray as xr

from qba.config import EngineConfig
from qba.errors import InputError
from qba.policies import PAPER, Policy
from qba.requests import Requests
from qba.sweeps import replay
from qba.traces import (
    drop_oversize,
    find,
    interarrival_scv,
    length_correlation,
    merge,
    read_dated,
    scale_lengths,
    standin_2024,
    windows,
)
from qba.traces.registry import AZURE_2023
from qba.traces.standin import REQUESTS_PER_WINDOW
from qba.traces.windows import LENGTH_SCALE, RATE, WINDOWS, label_windows

POLICIES = tuple(cls() for cls in PAPER)

SOURCES_2023 = {file.filename: file.sha256 for file in AZURE_2023}
"""File name and SHA-256 of the files that `azure_2023_study` reads."""

STANDIN_TEXT = (
    "stand-in for the Azure conversation week of 2024, drawn from its published figures; not the windows of the paper"
)
TRACES_2023 = ("code", "conversation", "merged")
LABELS_2023 = ("response", "total")
LABEL_TEXT = {"units": "1", "long_name": "what the true class goes by: response tokens, or prompt and response tokens"}


def azure_standin_study(
    count: int = WINDOWS,
    requests_per_window: int = REQUESTS_PER_WINDOW,
    seed: int = 0,
    *,
    label_by: str | float = "response",
    label_threshold: str = "window",
    policies: Sequence[Policy] = POLICIES,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Table II's protocol on stand-in windows (paper, section IV-E).

    Parameters
    ----------
    count, requests_per_window, seed : int
        See `qba.traces.standin_2024`.
    label_by, label_threshold
        See `qba.traces.windows.label_windows`.
    policies, config, executor, progress
        See `qba.sweeps.replay`.

    Returns
    -------
    xarray.Dataset
        Dimensions (policy, window): the statistics of `qba.summarize`; and by window the burstiness, tokens per request
        and correlation of lengths. The attribute ``traffic`` says that this is a stand-in.
    """
    parts = standin_2024(count, requests_per_window, seed, label_by=label_by, label_threshold=label_threshold)
    study = replay(parts, policies, config, executor, progress).merge(describe(parts))
    return study.assign_attrs(traffic=STANDIN_TEXT)


def azure_2023_study(
    path: str | Path | None = None,
    count: int = WINDOWS,
    *,
    label_threshold: str = "window",
    policies: Sequence[Policy] = POLICIES,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """The same protocol on the public traces of 2023, with either rule for the true class.

    Requests whose scaled prompt exceeds the engine's KV-safe limit could never run; they are dropped before windowing.

    Parameters
    ----------
    path : str or Path, optional
        Folder with both files; by default QBA_DATA_DIR, then data/.
    count : int
        Number of windows that each trace is cut into.
    label_threshold
        See `qba.traces.windows.label_windows`.
    policies, config, executor, progress
        See `qba.sweeps.replay`.

    Returns
    -------
    xarray.Dataset
        Dimensions (trace, label, policy, window): the statistics of `qba.summarize`; by trace and window the
        burstiness, tokens per request and correlation of lengths; by trace the requests per window and those dropped.

    Raises
    ------
    MissingTraceError
        If a file is not there.
    InputError
        If a file is not the published one.
    """
    studies = []
    for parts, dropped in windows_2023(path, count, config).values():
        by_label = [
            replay(label_windows(parts, label, label_threshold), policies, config, executor, progress)
            for label in LABELS_2023
        ]
        study = xr.concat(by_label, xr.DataArray(list(LABELS_2023), dims="label", name="label", attrs=LABEL_TEXT))
        text = "requests left out: prompt beyond the KV-safe limit"
        study["dropped_requests"] = ((), dropped, {"units": "1", "long_name": text})
        studies.append(study.merge(describe(parts)))
    names = {"units": "1", "long_name": "Azure LLM inference trace of 2023"}
    joined = xr.concat(studies, xr.DataArray(list(TRACES_2023), dims="trace", name="trace", attrs=names))
    return joined.assign_attrs(traffic="Azure LLM inference traces of 2023 (CC-BY, Azure/AzurePublicDataset)")


def windows_2023(
    path: str | Path | None = None, count: int = WINDOWS, config: EngineConfig = EngineConfig()
) -> dict[str, tuple[list[Requests], int]]:
    """Windows of each trace of 2023 at the paper's rate and length scale, and how many requests were left out."""
    cut = {}
    for name, requests in load_2023(path).items():
        kept, dropped = drop_oversize(scale_lengths(requests, LENGTH_SCALE), config)
        cut[name] = windows(kept, count, RATE, length_scale=1.0), dropped
    return cut


def load_2023(path: str | Path | None = None) -> dict[str, Requests]:
    """The public traces of 2023, and both together on their common clock; keys as in `TRACES_2023`."""
    code = read_dated(find("azure-2023-code", path), strict=True)
    conversation = read_dated(find("azure-2023-conversation", path), strict=True)
    traces = (code, conversation, merge(code, conversation))
    return {name: trace.requests for name, trace in zip(TRACES_2023, traces)}


def describe(parts: Sequence[Requests]) -> xr.Dataset:
    """What traffic each window holds: dataset over ``window``, and the number of requests, equal in all."""
    by_window = {
        "interarrival_scv": (interarrival_scv, "1", "squared coefficient of variation of the gaps between arrivals"),
        "tokens_per_request": (_mean_tokens, "tokens", "mean of prompt and response tokens together"),
        "length_correlation": (length_correlation, "1", "Pearson correlation of prompt and response tokens"),
    }
    variables = {
        name: ("window", [function(part) for part in parts], {"units": units, "long_name": text})
        for name, (function, units, text) in by_window.items()
    }
    size = ((), len(parts[0]), {"units": "1", "long_name": "requests in each window"})
    return xr.Dataset(variables | {"requests_per_window": size})


def table2(study: xr.Dataset) -> xr.Dataset:
    """Reduce a study to the quantities of the paper's Table II.

    Parameters
    ----------
    study : xarray.Dataset
        As the functions above return it; FCFS must be among the policies.

    Returns
    -------
    xarray.Dataset
        By policy (and trace and label where there are any): mean wait pooled over all requests, its change against
        FCFS, medians over windows of the true-short and true-long P99 wait, mean throughput and batch utilization, and
        KV overflows in all windows; without policy, the mean burstiness.

    Raises
    ------
    InputError
        If there is no FCFS to compare with.
    """
    if "FCFS" not in study.policy.values:
        raise InputError(f"table2: FCFS is not among the policies {', '.join(map(str, study.policy.values))}")
    # All windows have the same number of requests, so the mean over windows is the mean over requests.
    wait = study.wait_mean_s.mean("window")
    baseline = wait.sel(policy="FCFS", drop=True)
    rows = {
        "wait_mean_s": (wait, "s", "mean waiting time, all requests pooled"),
        "wait_change": ((wait - baseline) / baseline, "1", "change of the mean waiting time against FCFS, relative"),
        "wait_p99_true_short_s": (
            _median(study.wait_p99_true_short_s),
            "s",
            "median over windows of true-short P99 wait",
        ),
        "wait_p99_true_long_s": (_median(study.wait_p99_true_long_s), "s", "median over windows of true-long P99 wait"),
        "throughput_tokens_per_s": (study.throughput_tokens_per_s.mean("window"), "tokens/s", "mean throughput"),
        "batch_utilization": (study.batch_utilization.mean("window"), "1", "mean batch utilization"),
        "kv_overflows": (study.kv_overflows.sum("window"), "1", "KV overflows in all windows"),
        "interarrival_scv": (study.interarrival_scv.mean("window"), "1", "mean burstiness of the windows"),
    }
    table = xr.Dataset({name: values.assign_attrs(units=u, long_name=text) for name, (values, u, text) in rows.items()})
    return table.assign_attrs(study.attrs)


def windows_in_order(study: xr.Dataset) -> xr.Dataset:
    """Count the windows in which the policies stand in the order that the paper reports (section IV-E).

    Returns
    -------
    xarray.Dataset
        ``wait_mean``: windows where PSF's mean wait < QBA's < AA's; ``true_long_p99``: where the true-long P99 waits
        stand the other way round; ``windows``: how many there are.

    Raises
    ------
    InputError
        If one of the three policies is missing.
    """
    for name in ("PSF", "QBA", "AA"):
        if name not in study.policy.values:
            raise InputError(
                f"windows_in_order: {name} is not among the policies {', '.join(map(str, study.policy.values))}"
            )

    def rising(values: xr.DataArray, order: tuple[str, str, str]) -> xr.DataArray:
        low, middle, high = (values.sel(policy=name, drop=True) for name in order)
        return ((low < middle) & (middle < high)).sum("window")

    wait = rising(study.wait_mean_s, ("PSF", "QBA", "AA"))
    tail = rising(study.wait_p99_true_long_s, ("AA", "QBA", "PSF"))
    counts = {
        "wait_mean": (wait, "windows where the mean wait is PSF < QBA < AA"),
        "true_long_p99": (tail, "windows where the true-long P99 wait is AA < QBA < PSF"),
        "windows": (xr.DataArray(study.sizes["window"]), "windows in all"),
    }
    return xr.Dataset({k: v.assign_attrs(units="1", long_name=text) for k, (v, text) in counts.items()})


def _median(values: xr.DataArray) -> xr.DataArray:
    return values.median("window")


def _mean_tokens(part: Requests) -> float:
    return float(np.mean(part.prompt_tokens + part.response_tokens))
