"""From a long trace to comparable runs: cutting into windows, rescaling, labelling (paper, section IV-E)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from qba.errors import InputError
from qba.requests import LONG_QUANTILE, Requests, label_long
from qba.traces.readers import Trace
from qba.validate import number, whole_number

WINDOWS = 100
"""Windows that a trace is cut into (paper, section IV-E)."""

RATE = 32.0
"""Requests per second that each window is rescaled to (paper, section IV-E)."""

LENGTH_SCALE = 0.44
"""Factor on prompt and response lengths (paper, section IV-E)."""

LABELS = {"response": math.inf, "total": 1.0, "prompt": 0.0}
"""What a request's true class goes by, and how many prompt tokens a response token counts there. The paper's rule is
``"response"``; ``"prompt"`` needs no predictor."""

LABEL_THRESHOLDS = ("window", "whole")
"""Whose 0.85-quantile parts short from long: each window's own, as in a synthetic run, or that of all windows together.
The paper does not say."""


def windows(
    requests: Requests,
    count: int = WINDOWS,
    rate: float = RATE,
    length_scale: float = LENGTH_SCALE,
    *,
    label_by: str | float = "response",
    label_threshold: str = "window",
) -> list[Requests]:
    """Cut a trace into non-overlapping windows of equal request count, each replayed at the same rate.

    Order and the relative structure of the gaps stay; the paper gives the number of windows but not how they are cut,
    equal counts are our choice. Up to ``count`` − 1 rows at the end belong to no window.

    Parameters
    ----------
    requests : Requests
        The trace.
    count : int
        Number of windows; each holds N = len(requests) // count requests.
    rate, length_scale
        See `rescale`.
    label_by, label_threshold
        See `label_windows`.

    Returns
    -------
    list of Requests
        ``count`` windows of N requests each, in order.

    Raises
    ------
    InputError
        If a window would hold fewer than 2 requests, or all of a window's requests arrive at once.
    """
    count = whole_number("windows", "count", count, at_least=1)
    size = len(requests) // count
    if size < 2:
        raise InputError(
            f"windows: {len(requests):,} requests make no {count} windows of at least 2: "
            "use a longer trace or fewer windows"
        )
    cut = []
    for k in range(count):
        rows = slice(k * size, (k + 1) * size)
        part = Requests(**{name: getattr(requests, name)[rows] for name in Requests.__slots__})
        if part.arrival_s[-1] == part.arrival_s[0]:
            raise InputError(
                f"windows: window {k} (requests {rows.start}..{rows.stop - 1}) spans no time, "
                "so it has no rate to scale: use fewer windows"
            )
        cut.append(rescale(part, rate, length_scale))
    return label_windows(cut, label_by, label_threshold)


def rescale(
    requests: Requests, rate: float = RATE, length_scale: float = 1.0, *, label_by: str | float = "response"
) -> Requests:
    """Stretch the gaps to a mean rate, scale the lengths, and label anew.

    Parameters
    ----------
    requests : Requests
        N requests over a span of more than zero seconds.
    rate : float
        Requests per second: gaps are multiplied by (N − 1)/(rate · span), and the first request arrives at 0.
    length_scale : float
        Factor on both lengths, which are then rounded to whole tokens, at least 1.
    label_by
        See `relabel`; here of the scaled lengths.
    """
    rate = number("rescale", "rate", rate, above=0)
    span = requests.arrival_s[-1] - requests.arrival_s[0]
    if span == 0:
        raise InputError(f"rescale: {len(requests)} requests arrive at once, so they have no rate to scale")
    arrival = (requests.arrival_s - requests.arrival_s[0]) * ((len(requests) - 1) / (rate * span))
    return relabel(scale_lengths(requests.replace(arrival_s=arrival), length_scale), label_by)


def scale_lengths(requests: Requests, length_scale: float = LENGTH_SCALE) -> Requests:
    """Multiply both lengths, and predicted ones, round to whole tokens, at least 1. Labels stay."""
    number("scale_lengths", "length_scale", length_scale, above=0)
    names = ["prompt_tokens", "response_tokens"]
    if requests.predicted_tokens is not requests.response_tokens:
        names.append("predicted_tokens")
    lengths = {name: np.maximum(1, np.rint(getattr(requests, name) * length_scale)) for name in names}
    return requests.replace(**lengths)


def labelled_length(requests: Requests, label_by: str | float = "response") -> np.ndarray:
    """What the class goes by, in tokens: shape (n,). `label_by`: see `relabel`."""
    weight = LABELS.get(label_by) if isinstance(label_by, str) else label_by
    is_number = isinstance(weight, (int, float, np.number)) and not isinstance(weight, bool)
    if not (is_number and weight >= 0):
        raise InputError(
            f"label_by = {label_by!r}, but it must be one of {', '.join(LABELS)}, or a weight of at least 0"
        )
    if weight == math.inf:
        return requests.response_tokens
    return requests.prompt_tokens + weight * requests.response_tokens


def relabel(requests: Requests, label_by: str | float = "response") -> Requests:
    """Label long above the sample's own 0.85-quantile of a length; the prediction is perfect.

    Parameters
    ----------
    requests : Requests
    label_by : {"response", "total", "prompt"} or float
        The length: response tokens, prompt and response tokens, or prompt tokens. A number w stands for prompt tokens
        plus w times response tokens.
    """
    return label_windows([requests], label_by)[0]


def label_windows(
    parts: Sequence[Requests], label_by: str | float = "response", label_threshold: str = "window"
) -> list[Requests]:
    """Label the windows of a trace anew; the prediction is perfect.

    Parameters
    ----------
    parts : sequence of Requests
    label_by
        See `relabel`.
    label_threshold : {"window", "whole"}
        Long above the 0.85-quantile of the window, or of all windows together. With the latter a window has more or
        fewer than 15 % long requests, and may have none.

    Returns
    -------
    list of Requests
    """
    if label_threshold not in LABEL_THRESHOLDS:
        raise InputError(f"label_threshold = {label_threshold!r}, but it must be one of {', '.join(LABEL_THRESHOLDS)}")
    lengths = [labelled_length(part, label_by) for part in parts]
    if label_threshold == "whole":
        long = np.split(
            label_long(np.concatenate(lengths), LONG_QUANTILE), np.cumsum([len(part) for part in parts])[:-1]
        )
    else:
        long = [label_long(length, LONG_QUANTILE) for length in lengths]
    return [part.replace(true_long=labels, predicted_long=labels) for part, labels in zip(parts, long)]


def interarrival_scv(requests: Requests) -> float:
    """Squared coefficient of variation of the gaps between arrivals: 1 for a Poisson process, more when bursty.

    Raises
    ------
    InputError
        If there are fewer than 2 gaps, or all are zero.
    """
    gaps = np.diff(requests.arrival_s)
    if len(gaps) < 2 or not gaps.any():
        raise InputError(
            f"interarrival_scv: {len(requests)} requests over {np.sum(gaps):g} s have no gaps to compare: "
            "at least 3 requests over more than 0 s are needed"
        )
    return float(gaps.var() / gaps.mean() ** 2)


def length_correlation(requests: Requests) -> float:
    """Pearson correlation of prompt and response tokens; NaN where one of them never varies."""
    prompt, response = requests.prompt_tokens, requests.response_tokens
    if prompt.min() == prompt.max() or response.min() == response.max():
        return float("nan")
    return float(np.corrcoef(prompt, response)[0, 1])


def merge(a: Trace, b: Trace) -> Trace:
    """Interleave two traces of one wall clock; at ties the requests of ``a`` come first.

    Raises
    ------
    InputError
        If a trace has no wall-clock start.
    """
    for name, trace in (("first", a), ("second", b)):
        if trace.start is None:
            raise InputError(
                f"merge: the {name} trace counts seconds from an origin of its own, "
                "but merging needs dates with times in both"
            )
    times = np.concatenate([_nanoseconds(a), _nanoseconds(b)])
    order = np.argsort(times, kind="stable")
    times = times[order]
    lengths = {
        name: np.concatenate([getattr(a.requests, name), getattr(b.requests, name)])[order]
        for name in ("prompt_tokens", "response_tokens")
    }
    merged = Requests(arrival_s=(times - times[0]) / 1e9, **lengths)
    return Trace(
        merged,
        np.datetime64(int(times[0]), "ns"),
        format=" and ".join(dict.fromkeys((a.format, b.format))),
        rows=a.rows + b.rows,
        counts=dict(Counter(a.counts) + Counter(b.counts)),
        notes=tuple(dict.fromkeys(a.notes + b.notes)),
    )


def _nanoseconds(trace: Trace) -> np.ndarray:
    # Seconds came from whole nanoseconds; rounding gives them back exactly for spans up to weeks.
    return trace.start.astype(np.int64) + np.rint(trace.requests.arrival_s * 1e9).astype(np.int64)
