"""Which length should a scheduler predict? What serving short requests first gains, against how the work is shared out.

A policy that serves one class first gains if that class holds less than its share of the work. For one server without
preemption (Cobham 1954) the mean wait changes, against first come first served, by

    ((1 - rho) p_S + p_L) / (1 - rho w_S) - 1,

rho being the load, p_S and p_L the shares of short and long requests and w_S the share of the work that the short ones
bring: nothing is gained at w_S = p_S. The studies here hold this against the simulator: over what the label goes by
(`label_study`), and over how prompt and response hang together (`dependence_study`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import xarray as xr
from scipy.special import ndtri

from qba.azure import SOURCES_2023, TRACES_2023, windows_2023
from qba.config import EngineConfig
from qba.excerpt import FILENAME, SHA256, excerpt_study, load_excerpt, resampled_windows
from qba.order_statistics import rank_correlation
from qba.policies import FCFS, PSF, QBA, Policy
from qba.requests import LONG_QUANTILE, Requests
from qba.sweeps import replay
from qba.theory import priority_waits
from qba.traces import relabel, standin_2024
from qba.traces.standin import REQUESTS_PER_WINDOW
from qba.traces.windows import RATE, WINDOWS
from qba.workload import ROOT_SEED, synthetic

POLICIES = (FCFS(), PSF(), QBA())
SOURCES = SOURCES_2023 | {FILENAME: SHA256}
"""File name and SHA-256 of the files that `trace_windows` reads."""
PUBLISHED = ("azure_labels", "azure_dependence", "azure_excerpt")
"""The datasets of `published_studies`."""
STANDIN = "stand-in 2024"
KEEPS = ["wait_mean_s", "wait_p99_s"]
TENTHS = 10
RANK_CORRELATIONS = tuple(round(-0.3 + 0.1 * i, 1) for i in range(12))
"""−0.3 … 0.8, the last before windows run out of ways to be more in order."""
DEPENDENCE_LABELS = ("response", "total")


def time_weight(config: EngineConfig = EngineConfig()) -> float:
    """Prompt tokens that take as long as one response token when a request has the engine to itself (about 11).

    A full batch carries B prompt tokens, while a lone decode carries q in the time of an almost empty batch.
    """
    full = config.batch_overhead_s + config.token_time_s * max(0, config.token_budget - config.knee_tokens)
    alone = config.batch_overhead_s + config.token_time_s * max(0, config.decode_block - config.knee_tokens)
    return (alone / config.decode_block) / (full / config.token_budget)


def label_weights(config: EngineConfig = EngineConfig()) -> dict[str, float]:
    """What labels go by, from prompt over total tokens to response: how many prompt tokens a response token counts."""
    return {
        "prompt": 0.0, "1/4": 0.25, "1/2": 0.5, "total": 1.0, "2": 2.0, "4": 4.0, "time alone": time_weight(config),
        "32": 32.0, "response": math.inf,
    }  # fmt: skip


def published_studies(path: str | Path | None = None, count: int = WINDOWS) -> dict[str, xr.Dataset]:
    """The datasets that need the real files, by the name they are published under.

    path: folder with the traces of 2023 and the excerpt; see `trace_windows` for errors.
    """
    traces = trace_windows(path, count)
    dealt = {name: traces[name] for name in (*TRACES_2023, STANDIN)}
    return {
        "azure_labels": label_study(traces, progress=False),
        "azure_dependence": dependence_study(dealt, progress=False),
        "azure_excerpt": excerpt_study(load_excerpt(path), count),
    }


def trace_windows(
    path: str | Path | None = None,
    count: int = WINDOWS,
    requests_per_window: int = REQUESTS_PER_WINDOW,
    seed: int = 0,
    config: EngineConfig = EngineConfig(),
) -> dict[str, list[Requests]]:
    """Windows of the traces of 2023, of the stand-in for 2024, of the excerpt's rows, and of the synthetic workload.

    Raises
    ------
    MissingTraceError
        If a file is not there.
    InputError
        If a file is not the published one.
    """
    excerpt = load_excerpt(path)
    traces = {name: parts for name, (parts, _) in windows_2023(path, count, config).items()}
    traces[STANDIN] = standin_2024(count, requests_per_window, seed)
    traces["excerpt 2024"] = resampled_windows(excerpt, count, requests_per_window, seed)
    horizon = requests_per_window / RATE
    traces["synthetic"] = [synthetic(RATE, count * seed + window, horizon_s=horizon) for window in range(count)]
    return traces


def label_study(
    traces: Mapping[str, Sequence[Requests]],
    *,
    policies: Sequence[Policy] = POLICIES,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Replay traces with the label going by prompt, response and mixtures of both; predictions are perfect.

    Parameters
    ----------
    traces : mapping of name to windows
        As `trace_windows` gives them. The same number of windows in each.
    policies, config, executor, progress
        See `qba.sweeps.replay`.

    Returns
    -------
    xarray.Dataset
        Dimensions (trace, label, policy, window): mean and P99 of the wait; (trace, label): `long_work`, the share of
        all tokens that the long requests hold, and `predicted_change`, Cobham's formula; (trace): `offered_load` and
        `rank_correlation` of prompt and response; (trace, tenth): mean prompt and response tokens by tenths of requests
        in order of their responses; (label): `weight`.
    """
    weights = label_weights(config)
    studies = []
    for parts in traces.values():
        load = offered_load(parts, config)
        by_label = [
            _replay([relabel(part, weight) for part in parts], load, policies, config, executor, progress)
            for weight in weights.values()
        ]
        studies.append(_labelled(by_label, list(weights), parts, load).merge(_by_response(parts)))
    joined = _joined(studies, traces)
    joined["weight"] = ("label", list(weights.values()), _attrs("prompt tokens that a response token counts as"))
    return joined


def dependence_study(
    traces: Mapping[str, Sequence[Requests]],
    rank_correlations: Sequence[float] = RANK_CORRELATIONS,
    seed: int = 0,
    *,
    policies: Sequence[Policy] = POLICIES,
    config: EngineConfig = EngineConfig(),
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """The same windows with their responses dealt out anew, so that prompts and responses correlate as asked.

    Arrivals, prompts and the responses as a set stay in each window: only who gets which response changes. The label
    goes by the response or by total tokens.

    Parameters
    ----------
    traces : mapping of name to windows
    rank_correlations : sequence of float
        Spearman's, of prompt and response, from -1 to 1.
    seed : int
        Of the chance in dealing; the same draws serve all correlations.
    policies, config, executor, progress
        See `qba.sweeps.replay`.

    Returns
    -------
    xarray.Dataset
        Dimensions (trace, asked, label, policy, window): mean wait; (trace, asked, label): `long_work` and
        `predicted_change`; (trace, asked): `rank_correlation`, the one reached, and `offered_load`, as in `label_study`.
    """
    studies = []
    for parts in traces.values():
        by_correlation = []
        for asked in rank_correlations:
            dealt = [rearrange(part, asked, seed, k) for k, part in enumerate(parts)]
            load = offered_load(dealt, config)
            by_label = [
                _replay([relabel(part, label) for part in dealt], load, policies, config, executor, progress)
                for label in DEPENDENCE_LABELS
            ]
            by_correlation.append(_labelled(by_label, list(DEPENDENCE_LABELS), dealt, load).drop_vars("wait_p99_s"))
        axis = xr.DataArray(list(rank_correlations), dims="asked", name="asked")
        studies.append(xr.concat(by_correlation, axis.assign_attrs(_attrs("rank correlation asked for"))))
    return _joined(studies, traces)


def rearrange(part: Requests, rank_correlation: float, seed: int = 0, window: int = 0) -> Requests:
    """Deal the responses of a window out anew, by a Gaussian copula of that rank correlation with the prompts.

    Labels stay as they were: give new ones with `qba.traces.relabel`. Ties among prompts are broken by chance.
    """
    rng = np.random.default_rng(np.random.SeedSequence(ROOT_SEED, spawn_key=(seed, window)))
    n = len(part)
    ties, own = rng.random(n), rng.standard_normal(n)
    place = np.empty(n, dtype=int)
    place[np.lexsort((ties, part.prompt_tokens))] = np.arange(n)
    latent = 2 * math.sin(math.pi * rank_correlation / 6)  # a bivariate normal's, at this rank correlation
    score = latent * ndtri((place + 0.5) / n) + math.sqrt(1 - latent**2) * own
    responses = np.empty(n, dtype=np.int64)
    responses[np.argsort(score)] = np.sort(part.response_tokens)
    return part.replace(response_tokens=responses)


def cobham_change(load: float, long_requests: float, long_work: float) -> float:
    """Change of the mean wait when short requests go first, relative, at one server without preemption (Cobham 1954).

    load: below 1. long_requests, long_work: shares of requests and of work that are long. Infinite load gives NaN.
    """
    if load >= 1:
        return math.nan
    short, long = priority_waits(1.0, [load * (1 - long_work), load * long_work])
    first_come = 1 / (1 - load)
    return ((1 - long_requests) * short + long_requests * long) / first_come - 1


def offered_load(parts: Sequence[Requests], config: EngineConfig = EngineConfig()) -> float:
    """Tokens that windows offer at the paper's rate, over those that an engine running full batches serves."""
    work = np.concatenate([part.prompt_tokens + part.response_tokens for part in parts])
    full = config.batch_overhead_s + config.token_time_s * max(0, config.token_budget - config.knee_tokens)
    return float(RATE * work.mean() * full / config.token_budget)


def _replay(
    parts: Sequence[Requests],
    load: float,
    policies: Sequence[Policy],
    config: EngineConfig,
    executor: Executor | None,
    progress: bool,
) -> xr.Dataset:
    """Replay labelled windows, and say how the work is shared out and what theory makes of it."""
    study = replay(parts, policies, config, executor, progress)[KEEPS]
    work = np.concatenate([part.prompt_tokens + part.response_tokens for part in parts])
    long = np.concatenate([part.true_long for part in parts])
    long_work = work[long].sum() / work.sum()
    scalars = {
        "long_work": (long_work, "share of all tokens that the requests labelled long hold"),
        "predicted_change": (
            cobham_change(load, long.mean(), long_work),
            "change of PSF's mean wait against FCFS, theory",
        ),
    }
    return study.assign(_scalars(scalars))


def _by_response(parts: Sequence[Requests]) -> xr.Dataset:
    """Mean lengths by tenths of the requests, in order of their responses (ties in order of arrival)."""
    prompts = np.concatenate([part.prompt_tokens for part in parts])
    responses = np.concatenate([part.response_tokens for part in parts])
    tenths = np.array_split(np.argsort(responses, kind="stable"), TENTHS)
    text = {"prompt": "mean prompt tokens", "response": "mean response tokens"}
    means = {
        f"{name}_by_response": ("tenth", [values[rows].mean() for rows in tenths], _attrs(text[name], "tokens"))
        for name, values in (("prompt", prompts), ("response", responses))
    }
    return xr.Dataset(means, {"tenth": ("tenth", range(1, TENTHS + 1), _attrs("tenth of requests by response"))})


def _labelled(
    studies: Sequence[xr.Dataset], labels: Sequence[str], parts: Sequence[Requests], load: float
) -> xr.Dataset:
    """Join along the label, and say of the windows what does not depend on it."""
    axis = xr.DataArray(list(labels), dims="label", name="label", attrs=_attrs("what the label goes by"))
    ranks = [rank_correlation(part.prompt_tokens, part.response_tokens) for part in parts]
    scalars = {
        "offered_load": (load, "offered tokens over those of an engine that runs full batches"),
        "rank_correlation": (np.nanmean(ranks), "rank correlation of prompt and response tokens, mean over windows"),
    }
    return xr.concat(studies, axis).merge(xr.Dataset(_scalars(scalars)))


def _scalars(values: Mapping[str, tuple[float, str]]) -> dict[str, tuple]:
    return {name: ((), float(value), _attrs(text)) for name, (value, text) in values.items()}


def _joined(studies: Sequence[xr.Dataset], traces: Mapping[str, Sequence[Requests]]) -> xr.Dataset:
    axis = xr.DataArray(list(traces), dims="trace", name="trace", attrs=_attrs("where the requests are from"))
    return xr.concat(studies, axis).assign_attrs(long_requests=1 - LONG_QUANTILE)


def _attrs(text: str, units: str = "1") -> dict[str, str]:
    return {"units": units, "long_name": text}
