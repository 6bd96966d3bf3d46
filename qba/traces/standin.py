"""A stand-in for the Azure conversation week of 2024, drawn from its published figures.

The week itself (27.3 million rows; DynamoLLM, HPCA 2025) is too large to pass around. Unlike in the traces of 2023, its
mean length agrees with the paper's token throughput. The stand-in has its marginal lengths, its correlation of prompt
and response, and gaps as bursty as the paper says (section IV-E); whatever else the week holds, such as days and nights
or sessions, is not in it. It shows what the protocol gives on traffic of this kind; it is not the paper's data.

Lengths are a Gaussian copula: two correlated standard normals, one turned into a prompt, the other into a response.

- Prompts are lognormal, cut off at `MAX_PROMPT`.
- Responses are a mixture of two lognormals, brief and extended answers; a single one cannot meet all four figures.
- Gaps are two-phase hyperexponential with balanced means.

The constants below the published figures follow from them; a test solves for them again.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

from qba.requests import Requests
from qba.traces.windows import LENGTH_SCALE, RATE, WINDOWS, rescale
from qba.validate import whole_number
from qba.workload import ROOT_SEED, STREAMS

# Published figures: lengths in tokens, conversation week of 2024; burstiness from the paper, section IV-E.
PROMPT_MEAN, PROMPT_MEDIAN = 1632, 928
RESPONSE_MEAN, RESPONSE_MEDIAN, RESPONSE_P90, RESPONSE_P99 = 106, 41, 342, 694
LENGTH_CORRELATION = 0.53
"""Pearson correlation of prompt and response tokens."""
GAP_SCV = 2.9
"""Squared coefficient of variation of the gaps between arrivals."""
WEEK_RATE = 27.3e6 / (7 * 86400)
"""Requests per second, averaged over the week (about 45)."""

MAX_PROMPT = 13_000
"""Longest prompt, tokens: real services have a context limit. This is, in round numbers, the longest that the paper's
KV-safe limit of 5734.4 tokens admits after scaling by 0.44; the paper mentions no request that could not be served."""

# Prompt: lognormal of this median and scatter before the cut at MAX_PROMPT; mean and median hold after it.
PROMPT_SCALE, PROMPT_SIGMA = 945.69, 1.17448

# Response: share of brief answers, then median and scatter of brief and of extended ones. Four figures leave one of
# five numbers free: the scatter of extended answers, set to 0.3, about that of the public 186-row excerpt of the week.
BRIEF_SHARE = 0.89914
BRIEF_SCALE, BRIEF_SIGMA = 34.9205, 1.13782
EXTENDED_SCALE, EXTENDED_SIGMA = 436.159, 0.3

LATENT_CORRELATION = 0.6235
"""Correlation of the two normals that gives the lengths the Pearson correlation above."""

REQUESTS_PER_WINDOW = 1000
"""Our choice: the paper gives the number of windows, not their length. At 32 requests/s a window takes 31 s."""


def standin_2024(
    windows: int = WINDOWS,
    requests_per_window: int = REQUESTS_PER_WINDOW,
    seed: int = 0,
    *,
    rate: float = RATE,
    length_scale: float = LENGTH_SCALE,
    label_by: str = "response",
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
    rate, length_scale, label_by
        See `qba.traces.windows.rescale`.

    Returns
    -------
    list of Requests
    """
    windows = whole_number("standin_2024", "windows", windows, at_least=1)
    size = whole_number("standin_2024", "requests_per_window", requests_per_window, at_least=2)
    drawn = (draw_2024(size, seed, window) for window in range(windows))
    return [rescale(requests, rate, length_scale, label_by=label_by) for requests in drawn]


def draw_2024(requests: int, seed: int = 0, window: int = 0) -> Requests:
    """Draw stand-in traffic as the week has it: whole lengths, mean rate `WEEK_RATE`, first arrival at 0.

    Raises
    ------
    InputError
        If a number is not whole or too small.
    """
    n = whole_number("draw_2024", "requests", requests, at_least=1)
    normal = _stream(seed, window, "prompts").standard_normal(n)
    own = _stream(seed, window, "responses").standard_normal(n)
    mixed = LATENT_CORRELATION * normal + math.sqrt(1 - LATENT_CORRELATION**2) * own
    gaps = hyperexponential(_stream(seed, window, "arrivals"), n) / WEEK_RATE
    return Requests(
        arrival_s=np.cumsum(gaps) - gaps[0],
        prompt_tokens=np.maximum(1, np.rint(prompt_quantile(normal))),
        response_tokens=np.maximum(1, np.rint(response_quantile(mixed))),
    )


def prompt_quantile(normal: np.ndarray) -> np.ndarray:
    """Prompt tokens (not yet whole) at standard normal scores: the truncated lognormal's quantile function."""
    below_cut = ndtr(math.log(MAX_PROMPT / PROMPT_SCALE) / PROMPT_SIGMA)
    return PROMPT_SCALE * np.exp(PROMPT_SIGMA * ndtri(ndtr(normal) * below_cut))


def response_probability(tokens: np.ndarray) -> np.ndarray:
    """Distribution function of the response tokens: a mixture of brief and extended answers, both lognormal."""
    brief = ndtr(np.log(tokens / BRIEF_SCALE) / BRIEF_SIGMA)
    extended = ndtr(np.log(tokens / EXTENDED_SCALE) / EXTENDED_SIGMA)
    return BRIEF_SHARE * brief + (1 - BRIEF_SHARE) * extended


_RESPONSE_GRID = np.geomspace(1e-3, 1e5, 4001)  # 0.5 % apart: interpolation errs by less than rounding to whole tokens


def response_quantile(normal: np.ndarray) -> np.ndarray:
    """Response tokens (not yet whole) at standard normal scores, from the distribution function inverted on a grid."""
    scores = ndtri(response_probability(_RESPONSE_GRID))
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
