"""What a trace is like: its rate and bursts, its lengths, and whether serving short responses first can gain anything."""

from __future__ import annotations

import numpy as np
import xarray as xr

from qba.advice.measures import attrs
from qba.config import EngineConfig
from qba.errors import InputError
from qba.labels import cobham_change
from qba.order_statistics import quantiles, rank_correlation
from qba.requests import LONG_QUANTILE, Requests, label_long
from qba.traces import interarrival_scv, length_correlation
from qba.traces.windows import LABELS, labelled_length

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.85, 0.95, 0.99, 1.0)
BINS = 60
"""Slices of equal time for the rate's course."""
LOAD = 0.9
"""Load at which theory says what serving one class first would gain."""
FEW = 50
"""Requests below which nothing is concluded."""
GAP = 0.3
"""Share of the span that one gap takes up only if something is wrong, or nobody was there."""
HARDLY = 0.1
"""Gain below which prediction hardly pays."""


def describe(requests: Requests, config: EngineConfig = EngineConfig()) -> xr.Dataset:
    """Describe a trace.

    Parameters
    ----------
    requests : Requests
        N requests, 2 or more, over more than no time.
    config : EngineConfig
        The engine whose capacity the trace is held against.

    Returns
    -------
    xarray.Dataset
        Scalars: `requests`, `span_s`, `rate` (requests/s), `rate_low` and `rate_high` (5th and 95th percentile over
        `BINS` slices of equal time), `interarrival_scv` (NaN for fewer than 3 requests), `tied_share` (requests that
        arrive with the one before), `length_correlation` and `rank_correlation` of prompt and response, `engine_rate`
        (requests/s that an engine running full batches serves), `offered_load`, `oversize` (prompts that the engine can
        never admit). By ``slice``: `rate_course`. By ``length`` (prompt, response, total) and ``level``:
        `length_quantile`; by length `length_mean`. By ``label`` (what long goes by): `long_work`, the share of all
        tokens that the long requests hold, and `predicted_change`, that of the mean wait if short ones go first, in
        theory (`qba.labels.cobham_change`, at load `LOAD`).

    Raises
    ------
    InputError
        If all requests arrive at once.
    """
    arrival = requests.arrival_s
    span = float(arrival[-1] - arrival[0])
    if span == 0:
        raise InputError(f"describe: {len(requests):,} requests arrive at once, so they have no rate")
    rate = (len(requests) - 1) / span
    counts, edges = np.histogram(arrival, BINS, (arrival[0], arrival[-1]))
    course = counts / (span / BINS)
    lengths = {
        "prompt": requests.prompt_tokens,
        "response": requests.response_tokens,
        "total": requests.prompt_tokens + requests.response_tokens,
    }
    engine_rate = full_rate(requests, config)
    found = {
        "requests": (len(requests), "1", "requests"),
        "span_s": (span, "s", "from the first arrival to the last"),
        "rate": (rate, "requests/s", "mean rate"),
        "rate_low": (quantiles(course, (0.05,))[0], "requests/s", f"rate, 5th percentile of {BINS} slices"),
        "rate_high": (quantiles(course, (0.95,))[0], "requests/s", f"rate, 95th percentile of {BINS} slices"),
        "interarrival_scv": (
            interarrival_scv(requests) if len(requests) > 2 else np.nan,
            "1",
            "squared coefficient of variation of the gaps between arrivals",
        ),
        "longest_gap_s": (float(np.diff(arrival).max()), "s", "longest gap between arrivals"),
        "tied_share": (
            float(np.mean(np.diff(arrival) == 0)),
            "1",
            "share of arrivals at the same time as the one before",
        ),
        "length_correlation": (length_correlation(requests), "1", "correlation of prompt and response tokens"),
        "rank_correlation": (
            rank_correlation(requests.prompt_tokens, requests.response_tokens),
            "1",
            "rank correlation of prompt and response tokens",
        ),
        "engine_rate": (engine_rate, "requests/s", "rate that the engine serves with full batches"),
        "offered_load": (rate / engine_rate, "1", "mean rate over that which the engine serves with full batches"),
        "oversize": (
            int(np.count_nonzero(requests.prompt_tokens > config.kv_safe_tokens)),
            "1",
            "prompts beyond the engine's KV-safe limit",
        ),
    }
    variables = {name: ((), value, attrs(units, text)) for name, (value, units, text) in found.items()}
    variables["rate_course"] = ("slice", course, attrs("requests/s", "rate"))
    variables["length_quantile"] = (
        ("length", "level"),
        [quantiles(tokens, LEVELS) for tokens in lengths.values()],
        attrs("tokens", "length"),
    )
    variables["length_mean"] = (
        "length",
        [tokens.mean() for tokens in lengths.values()],
        attrs("tokens", "mean length"),
    )
    return xr.Dataset(
        variables | _by_label(requests, lengths["total"]),
        {
            "slice": ("slice", (edges[:-1] + edges[1:]) / 2 - arrival[0], attrs("s", "time since the first arrival")),
            "length": ("length", list(lengths), attrs("1", "which tokens")),
            "level": ("level", list(LEVELS), attrs("1", "level of the quantile")),
            "label": ("label", list(LABELS), attrs("1", "what long goes by")),
        },
        {"engine": repr(config)},
    )


def full_rate(requests: Requests, config: EngineConfig) -> float:
    """Requests of these lengths that an engine running full batches serves, requests/s: no policy serves more."""
    full = config.batch_overhead_s + config.token_time_s * max(0, config.token_budget - config.knee_tokens)
    mean = float(requests.prompt_tokens.mean() + requests.response_tokens.mean())
    return config.token_budget / full / mean


def warnings(about: xr.Dataset, label_by: str = "response", load: bool = True) -> list[str]:
    """What one should know before trusting a comparison, in lines of plain words.

    about: as `describe` returns it. load: also whether the rate suits the engine.
    """
    lines = []
    if about.requests < FEW:
        return [f"{int(about.requests)} requests are too few to tell anything from"]
    if about.longest_gap_s > GAP * about.span_s:
        lines.append(
            f"one gap is {about.longest_gap_s.item():.3g} s long, {(about.longest_gap_s / about.span_s).item():.0%} of the trace: "
            "if that is a wrong time stamp, rates and loads here mean nothing"
        )
    change = about.predicted_change.sel(label=label_by).item()
    if not change < -HARDLY:
        held = about.long_work.sel(label=label_by).item()
        better = about.predicted_change.idxmin("label").item()
        gain = about.predicted_change.sel(label=better).item()
        lines.append(
            f"the length that labels go by ({label_by}) hardly predicts the work: the longest "
            f"{1 - LONG_QUANTILE:.0%} hold {held:.0%} of all tokens, so serving short ones first {_gains(change)}"
            + (f"; by {better} length it would ({gain:+.0%} in theory): --label-by {better}" if gain < -HARDLY else "")
        )
    if about.oversize > 0:
        lines.append(
            f"{int(about.oversize):,} of {int(about.requests):,} prompts are beyond the engine's KV-safe limit; they can "
            "never run: --kv for a larger cache, or --drop-oversize"
        )
    if not load:
        return lines
    if about.offered_load > 1:
        lines.append(
            f"at {about.rate.item():.3g} requests/s the trace offers {about.offered_load.item():.0%} of what the engine "
            f"can serve at most ({about.engine_rate.item():.3g} requests/s): queues grow until it ends"
        )
    elif about.offered_load < 0.5:
        lines.append(
            f"at {about.rate.item():.3g} requests/s the engine is hardly busy on average (it could serve up to "
            f"{about.engine_rate.item():.3g}), so policies differ in bursts at most: --rate or --speedup for more"
        )
    return lines


def _gains(change: float) -> str:
    return "makes waits longer" if change > 0.005 else "gains little" if change < -0.005 else "gains nothing"


def _by_label(requests: Requests, work: np.ndarray) -> dict[str, tuple]:
    held, change = [], []
    for name in LABELS:
        long = label_long(labelled_length(requests, name))
        held.append(work[long].sum() / work.sum())
        change.append(cobham_change(LOAD, float(long.mean()), float(held[-1])))
    return {
        "long_work": ("label", held, attrs("1", "share of all tokens that the requests labelled long hold")),
        "predicted_change": (
            "label",
            change,
            attrs("1", f"change of the mean wait if short requests go first, theory, at load {LOAD:g}"),
        ),
    }
