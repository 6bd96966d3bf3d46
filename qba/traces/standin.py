"""A stand-in for the Azure conversation week of 2024, drawn from its published figures.

The week itself (27.3 million rows; DynamoLLM, HPCA 2025) is too large to pass around. Unlike in the traces of 2023, its
mean length agrees with the paper's token throughput. The stand-in has its published lengths, its correlation of prompt
and response, and gaps as bursty as the paper says (section IV-E); whatever else the week holds, such as days and nights
or sessions, is not in it. It shows what the protocol gives on traffic of this kind; it is not the paper's data.

Two kinds of requests, as a public excerpt of 186 rows shows them:

- *short prompts* with brief answers, whose length has nothing to do with the prompt's;
- *long prompts* with answers brief or extended, and here the longer prompt tends to get the longer answer.

Prompts are lognormal in both kinds, cut off at `MAX_PROMPT`; brief answers are exponential, extended ones lognormal; the
lengths of the second kind are joined by a Gaussian copula. Of the ten constants nine follow from nine published figures
(a test solves for them again); the tenth, the copula's correlation, is the excerpt's likeliest value.

So prompts and responses correlate as published (0.53), which is the work of the few long pairs, while their ranks do
so less (Spearman 0.37); the excerpt has 0.25, with a 95 % bootstrap interval of 0.09 to 0.39. A single Gaussian copula
over all requests, at the same 0.53, would have ranks at 0.6, which the excerpt rules out. Where the excerpt is at hand, tests
compare it with the draws. Gaps are two-phase hyperexponential with balanced means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from qba.requests import Requests
from qba.traces.windows import LENGTH_SCALE, RATE, WINDOWS, label_windows, rescale
from qba.validate import whole_number
from qba.workload import ROOT_SEED, STREAMS

# Published figures: lengths in tokens, conversation week of 2024 (data/README.md says where they are from); burstiness
# from the paper, section IV-E.
PROMPT_MEAN, PROMPT_MEDIAN, PROMPT_P90, PROMPT_P99 = 1632, 928, 3830, 6683
RESPONSE_MEAN, RESPONSE_MEDIAN, RESPONSE_P90, RESPONSE_P99 = 106, 41, 342, 694
LENGTH_CORRELATION = 0.53
"""Pearson correlation of prompt and response tokens."""
GAP_SCV = 2.9
"""Squared coefficient of variation of the gaps between arrivals."""
WEEK_RATE = 27.3e6 / (7 * 86400)
"""Requests per second, averaged over the week (about 45)."""

MAX_PROMPT = 8000
"""Longest prompt, tokens: the week's longest has 7999. Scaled by 0.44 it fits below the paper's KV-safe limit of 5734.4
tokens, as it must: the paper mentions no request that could not be served."""

LONG_CORRELATION = 0.42
"""Of the normal scores of prompt and response among long prompts: the excerpt's likeliest value under the published
figures (profile likelihood, 95 %: 0.41 to 0.43; by itself the excerpt has a rank correlation of 0.40 among prompts beyond
1200 tokens, bootstrap 0.19 to 0.57, and -0.11 among shorter ones, -0.34 to 0.11)."""

# What follows from these: the share of all requests that get an extended answer, the mean of brief answers and median
# and scatter of the logarithm of extended ones (the four figures of responses); then the share of long prompts, median
# and scatter of each kind of prompt before the cut (the four figures of prompts, and the correlation of lengths).
EXTENDED_SHARE = 0.175184
BRIEF_MEAN = 43.9961
EXTENDED_SCALE, EXTENDED_SIGMA = 366.801, 0.403642
LONG_SHARE = 0.478856
SHORT_PROMPT_SCALE, SHORT_PROMPT_SIGMA = 517.731, 0.405027
LONG_PROMPT_SCALE, LONG_PROMPT_SIGMA = 2510.31, 0.555371

REQUESTS_PER_WINDOW = 1000
"""Our choice: the paper gives the number of windows, not their length. At 32 requests/s a window takes 31 s."""


def standin_2024(
    windows: int = WINDOWS,
    requests_per_window: int = REQUESTS_PER_WINDOW,
    seed: int = 0,
    *,
    rate: float = RATE,
    length_scale: float = LENGTH_SCALE,
    label_by: str | float = "response",
    label_threshold: str = "window",
) -> list[Requests]:
    """Windows of stand-in traffic, brought to the paper's load as windows of a real trace are.

    Parameters
    ----------
    windows : int
        Number of windows; each has random streams of its own, so that fewer windows are the first of more.
    requests_per_window : int
        N, requests in each, at least 2.
    seed : int
        Number of the replication.
    rate, length_scale, label_by, label_threshold
        See `qba.traces.windows.windows`.

    Returns
    -------
    list of Requests
    """
    windows = whole_number("standin_2024", "windows", windows, at_least=1)
    size = whole_number("standin_2024", "requests_per_window", requests_per_window, at_least=2)
    drawn = (draw_2024(size, seed, window) for window in range(windows))
    return label_windows([rescale(requests, rate, length_scale) for requests in drawn], label_by, label_threshold)


def draw_2024(requests: int, seed: int = 0, window: int = 0) -> Requests:
    """Draw stand-in traffic as the week has it: whole lengths, mean rate `WEEK_RATE`, first arrival at 0.

    Raises
    ------
    InputError
        If a number is not whole or too small.
    """
    n = whole_number("draw_2024", "requests", requests, at_least=1)
    prompts, responses = (_stream(seed, window, name) for name in ("prompts", "responses"))
    long = prompts.random(n) < LONG_SHARE
    normal, own = prompts.standard_normal(n), responses.standard_normal(n)
    mixed = LONG_CORRELATION * normal + math.sqrt(1 - LONG_CORRELATION**2) * own
    short_prompt = prompt_quantile(normal, SHORT_PROMPT_SCALE, SHORT_PROMPT_SIGMA)
    long_prompt = prompt_quantile(normal, LONG_PROMPT_SCALE, LONG_PROMPT_SIGMA)
    gaps = hyperexponential(_stream(seed, window, "arrivals"), n) / WEEK_RATE
    return Requests(
        arrival_s=np.cumsum(gaps) - gaps[0],
        prompt_tokens=np.maximum(1, np.rint(np.where(long, long_prompt, short_prompt))),
        response_tokens=np.maximum(1, np.rint(np.where(long, long_response(mixed), brief_response(own)))),
    )


def draw_week(requests: int, seed: int = 0, at_once: int = 1_000_000) -> Iterator[Requests]:
    """Draw a long trace of stand-in traffic in parts, so that one as long as the week needs the memory of a part only.

    Parameters
    ----------
    requests : int
        Rows in all; the week has 27.3 million.
    seed : int
        Number of the replication.
    at_once : int
        Rows in a part. Each part has random streams of its own, so another number gives another trace.

    Yields
    ------
    Requests
        Parts whose arrivals go on from one to the next, as `qba.traces.write_trace` writes them.
    """
    n = whole_number("draw_week", "requests", requests, at_least=1)
    at_once = whole_number("draw_week", "at_once", at_once, at_least=1)
    begin = 0.0
    for window, first in enumerate(range(0, n, at_once)):
        # One request more than is needed: it is the next part's first, and says when that begins.
        drawn = draw_2024(min(at_once, n - first) + 1, seed, window)
        yield Requests(
            arrival_s=begin + drawn.arrival_s[:-1],
            prompt_tokens=drawn.prompt_tokens[:-1],
            response_tokens=drawn.response_tokens[:-1],
        )
        begin += drawn.arrival_s[-1]


def prompt_quantile(normal: np.ndarray, scale: float, sigma: float) -> np.ndarray:
    """Prompt tokens (not yet whole) at standard normal scores: quantiles of a lognormal cut off at `MAX_PROMPT`."""
    below_cut = ndtr(math.log(MAX_PROMPT / scale) / sigma)
    return scale * np.exp(sigma * ndtri(ndtr(normal) * below_cut))


def brief_response(normal: np.ndarray) -> np.ndarray:
    """Response tokens (not yet whole) of short prompts at standard normal scores: an exponential's quantiles."""
    return -BRIEF_MEAN * log_ndtr(-normal)


def long_response_probability(tokens: np.ndarray) -> np.ndarray:
    """Distribution function of the response tokens of long prompts: brief answers and extended ones."""
    extended = EXTENDED_SHARE / LONG_SHARE
    brief_answer = -np.expm1(-tokens / BRIEF_MEAN)
    return (1 - extended) * brief_answer + extended * ndtr(np.log(tokens / EXTENDED_SCALE) / EXTENDED_SIGMA)


_RESPONSE_GRID = np.geomspace(1e-3, 1e5, 4001)  # 0.5 % apart: interpolation errs by less than rounding to whole tokens


def long_response(normal: np.ndarray) -> np.ndarray:
    """Response tokens (not yet whole) of long prompts at standard normal scores, inverted on a grid."""
    scores = ndtri(long_response_probability(_RESPONSE_GRID))
    rising = np.isfinite(scores)
    return np.exp(np.interp(normal, scores[rising], np.log(_RESPONSE_GRID[rising])))


def hyperexponential(rng: np.random.Generator, n: int, scv: float = GAP_SCV) -> np.ndarray:
    """``n`` gaps of mean 1: exponential, of one of two rates whose phases have equal weight in the mean."""
    often = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2
    share = np.where(rng.random(n) < often, often, 1 - often)
    return rng.standard_exponential(n) / (2 * share)


def _stream(seed: int, window: int, name: str) -> np.random.Generator:
    key = (
        whole_number("draw_2024", "seed", seed, at_least=0),
        whole_number("draw_2024", "window", window, at_least=0),
        STREAMS.index(name),
    )
    return np.random.default_rng(np.random.SeedSequence(ROOT_SEED, spawn_key=key))
