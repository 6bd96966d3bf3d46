"""What 186 real rows of the week of 2024 say about the stand-in: lengths, how they hang together, and Table II from them.

The excerpt (Azure/AzurePublicDataset, CC-BY) is eight seconds of traffic. It is too short to be cut into windows and not
part of the repository; but its rows can be drawn again and again, and what they show has a bootstrap interval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xarray as xr

from qba.azure import describe, table2
from qba.errors import InputError
from qba.order_statistics import rank_correlation
from qba.requests import Requests, label_long
from qba.sweeps import replay
from qba.traces import MissingTraceError, draw_2024, find, read_trace, rescale
from qba.traces.standin import PROMPT_MEAN, REQUESTS_PER_WINDOW, RESPONSE_MEAN, hyperexponential
from qba.traces.windows import LENGTH_SCALE, RATE, WINDOWS
from qba.workload import ROOT_SEED

FILENAME = "azure-2024-conversation-excerpt.csv"
SHA256 = "e104600351562325a03836062b9e2777197a0fb0311eab8c3170f543974ead82"
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Levels at which the lengths are compared."""
LONG_PROMPT = 1200
"""Prompt tokens that part short prompts from long ones, about where the stand-in's two kinds are equally likely."""
RESAMPLES = 1000
SAMPLES = 100
"""Samples of the excerpt for the scatter of Table II, where each takes some windows of simulation."""
WEEK_MEAN = PROMPT_MEAN + RESPONSE_MEAN


def load_excerpt(path: str | Path | None = None) -> Requests:
    """The excerpt, searched for beside the traces of 2023 (see `qba.traces.find`).

    Raises
    ------
    MissingTraceError
        If it, or the traces of 2023, are not there.
    InputError
        If it is another file.
    """
    file = find("azure-2023-code", path).with_name(FILENAME)
    if not file.is_file():
        raise MissingTraceError(f"no {FILENAME} in {file.parent}, beside the traces of 2023")
    if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
        raise InputError(f"{file}: is not the excerpt of the week of 2024: its SHA-256 is not {SHA256}")
    return read_trace(file)


def resampled_windows(
    excerpt: Requests,
    count: int = WINDOWS,
    requests_per_window: int = REQUESTS_PER_WINDOW,
    seed: int = 0,
    *,
    length_scale: float = LENGTH_SCALE,
) -> list[Requests]:
    """Windows of rows drawn from the excerpt with replacement, at the paper's load; gaps as in the stand-in."""
    rng = np.random.default_rng(np.random.SeedSequence(ROOT_SEED, spawn_key=(seed,)))
    parts = []
    for _ in range(count):
        rows = rng.integers(len(excerpt), size=requests_per_window)
        gaps = hyperexponential(rng, requests_per_window)
        drawn = Requests(
            arrival_s=np.cumsum(gaps) - gaps[0],
            prompt_tokens=excerpt.prompt_tokens[rows],
            response_tokens=excerpt.response_tokens[rows],
        )
        parts.append(rescale(drawn, RATE, length_scale))
    return parts


def excerpt_study(excerpt: Requests, count: int = WINDOWS, seed: int = 0) -> xr.Dataset:
    """Everything that the excerpt says: `compare`, and the paper's Table II on `resampled_windows`.

    Returns
    -------
    xarray.Dataset
        `compare`'s variables, and by policy those of `qba.azure.table2`; `change_low` and `change_high` are the 95 %
        interval of the change of the mean wait over samples of the excerpt's size, at the week's mean length.
    """
    parts = resampled_windows(excerpt, count, seed=seed)
    table = table2(replay(parts, progress=False).merge(describe(parts)))
    low, high = change_interval(excerpt, max(2, count // 10), seed)
    text = "change of the mean wait against FCFS: {} end of its sampling interval"
    table["change_low"] = low.assign_attrs(units="1", long_name=text.format("lower"))
    table["change_high"] = high.assign_attrs(units="1", long_name=text.format("upper"))
    return compare(excerpt, seed).merge(table.drop_attrs(deep=False))


def change_interval(
    excerpt: Requests, count: int, seed: int = 0, samples: int = SAMPLES
) -> tuple[xr.DataArray, xr.DataArray]:
    """How the change of the mean wait against FCFS scatters over samples of the excerpt's size: a double bootstrap.

    The lengths of each sample are scaled to the week's mean, so that the load is the same. Each is drawn into ``count``
    windows. Returns the ends of the 95 % interval, by policy.
    """
    rng = np.random.default_rng(np.random.SeedSequence(ROOT_SEED, spawn_key=(seed, 1)))
    changes = []
    for sample in range(samples):
        rows = rng.integers(len(excerpt), size=len(excerpt))
        drawn = excerpt.replace(
            prompt_tokens=excerpt.prompt_tokens[rows], response_tokens=excerpt.response_tokens[rows]
        )
        mean = (drawn.prompt_tokens + drawn.response_tokens).mean()
        parts = resampled_windows(drawn, count, seed=sample, length_scale=LENGTH_SCALE * WEEK_MEAN / mean)
        wait = replay(parts, progress=False).wait_mean_s.mean("window")
        changes.append(wait / wait.sel(policy="FCFS", drop=True) - 1)
    ends = xr.concat(changes, "sample").quantile([0.025, 0.975], "sample")
    return tuple(ends.isel(quantile=i, drop=True) for i in (0, 1))


def compare(excerpt: Requests, seed: int = 0, resamples: int = RESAMPLES) -> xr.Dataset:
    """Set the stand-in against the excerpt.

    Parameters
    ----------
    excerpt : Requests
    seed : int
        Of the resampling, and number of the stand-in's replication.
    resamples : int
        Bootstrap samples of the excerpt, and samples of as many rows from the stand-in.

    Returns
    -------
    xarray.Dataset
        By ``length`` and ``level``: `length_quantile`; by ``statistic``: `dependence`; each with ``source`` (excerpt, stand-in)
        and ``value``: the figure itself and where 95 % of samples of the excerpt's size lie, `low` to `high`.
    """
    rng = np.random.default_rng(np.random.SeedSequence(ROOT_SEED, spawn_key=(seed,)))
    n = len(excerpt)
    rows = rng.integers(n, size=(resamples, n))
    real = np.stack([excerpt.prompt_tokens, excerpt.response_tokens])
    drawn = draw_2024(n * resamples, seed)
    drawn = np.stack([drawn.prompt_tokens, drawn.response_tokens])
    sources = {"excerpt": (real, real[:, rows]), "stand-in": (drawn, drawn.reshape(2, resamples, n))}

    def triple(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        found = []
        for whole, samples in sources.values():
            scatter = [function(samples[:, k]) for k in range(resamples)]
            low, high = np.nanquantile(scatter, (0.025, 0.975), axis=0)
            found.append([function(whole), low, high])
        return np.moveaxis(np.array(found), (0, 1), (-2, -1))

    text = {
        "length": "what is measured", "level": "level of the quantile", "statistic": "how the lengths hang together",
        "source": "the real excerpt, or the stand-in", "value": "the figure, or the ends of its sampling interval",
    }  # fmt: skip
    coords = {
        "length": ["prompt", "response"], "level": list(LEVELS), "statistic": list(DEPENDENCE),
        "source": list(sources), "value": ["figure", "low", "high"],
    }  # fmt: skip
    quantile = triple(lambda lengths: np.quantile(lengths, LEVELS, axis=1).T)
    dependence = triple(lambda lengths: np.array([function(*lengths) for function in DEPENDENCE.values()]))
    return xr.Dataset(
        {
            "length_quantile": (
                ("length", "level", "source", "value"), quantile, {"units": "tokens", "long_name": "length, unscaled"},
            ),
            "dependence": (
                ("statistic", "source", "value"), dependence, {"units": "1", "long_name": "dependence of the lengths"},
            ),
        },
        {name: (name, values, {"units": "1", "long_name": text[name]}) for name, values in coords.items()},
        {"rows": n, "resamples": resamples},
    )  # fmt: skip


def _upper_tail(prompt: np.ndarray, response: np.ndarray) -> float:
    long = label_long(response)
    return float(label_long(prompt)[long].mean())


def _long_given_quarter(quarter: int) -> Callable[[np.ndarray, np.ndarray], float]:
    def share(prompt: np.ndarray, response: np.ndarray) -> float:
        place = np.searchsorted(np.quantile(prompt, (0.25, 0.5, 0.75)), prompt)
        return float(label_long(response)[place == quarter].mean())

    return share


DEPENDENCE: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "correlation": lambda p, r: float(np.corrcoef(p, r)[0, 1]),
    "rank correlation": rank_correlation,
    "rank correlation, short prompts": lambda p, r: rank_correlation(p[p <= LONG_PROMPT], r[p <= LONG_PROMPT]),
    "rank correlation, long prompts": lambda p, r: rank_correlation(p[p > LONG_PROMPT], r[p > LONG_PROMPT]),
    "long prompt, given a long response": _upper_tail,
    "long response, given 1st quarter of prompts": _long_given_quarter(0),
    "long response, given 2nd quarter": _long_given_quarter(1),
    "long response, given 3rd quarter": _long_given_quarter(2),
    "long response, given 4th quarter": _long_given_quarter(3),
}
"""Statistics of prompt and response tokens; *long* is above the 0.85-quantile."""
