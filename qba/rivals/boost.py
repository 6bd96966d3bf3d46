"""Rivals that serve as if the short ones had come earlier: γ-boost and Nudge-M, for the tail of the waiting time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qba.config import EngineConfig
from qba.definition import policy
from qba.errors import InputError
from qba.requests import Requests
from qba.validate import instance, number


@policy(knows="class")
class Boost:
    """γ-boost for two classes: the smallest arrival − boost of the predicted class goes first.

    Parameters: ``boost_short``, ``boost_long``, seconds; only their difference counts. The defaults are those that
    `boosts` finds for the default workload at 32 requests/s, where a batch uses 0.68 of the budget. So near saturation
    they move much with the load: at 30 requests/s the difference is 0.4 s.
    Source: Yu & Scully, "Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1", 2024, arXiv 2404.08826. The
    formula for labels was read where its open problem is quoted; the paper proves it for sizes and conjectures it for
    labels, in a queue with one server.
    Left out: see `boosts` for how a batching engine is taken for that server.
    """

    boost_short: float = 12.3
    boost_long: float = 9.86

    def key(self, request):
        return request.arrival_s - (self.boost_long if request.predicted_long else self.boost_short)


@policy(knows="length", limits={"decay_rate": {"above": 0}, "token_s": {"above": 0}})
class BoostByLength:
    """γ-boost by predicted length: the smallest arrival − b(s) goes first, b(s) = (1/γ) ln(1 / (1 − e^(−γ s))).

    s is prompt and predicted response together, times ``token_s``. It is the formula of `Boost` with the size as the
    label.

    Parameters: ``decay_rate``, γ in 1/s; ``token_s``, seconds of service for a token. The defaults are found as
    `Boost`'s.
    Source, left out: as there.
    """

    decay_rate: float = 0.379
    token_s: float = 3.976e-5

    def key(self, request):
        x = self.decay_rate * self.token_s * (request.prompt_tokens + request.predicted_tokens)
        return request.arrival_s + math.log(-math.expm1(-x)) / self.decay_rate


@policy(knows="class", limits={"m": {"at_least": 0}})
class NudgeM:
    """Nudge-M: a short passes a waiting long if that is among the last ``m`` requests, of both classes, before it.

    So a short with number i goes before the longs from i − m on, and in each class it is first come, first served.

    Parameters: ``m``, requests; 0 is first come, first served. The default is the difference of the default boosts
    times 32 requests/s, since γ-boost counts in time what Nudge-M counts in arrivals; it is not the paper's optimum.
    Source: Charlet & Van Houdt, "Tail Optimality and Performance Analysis of the Nudge-M Scheduling Algorithm", 2024,
    arXiv 2403.06588 (its abstract was read, which states the rule; not the whole paper).
    Left out: the paper's formula for the best m, and its setting: one server, light-tailed sizes.
    """

    m: int = 78

    def key(self, request):
        return request.number if request.predicted_long else request.number - self.m - 0.5


class Boosts(NamedTuple):
    """What `boosts` finds: γ in 1/s, the boosts of the two classes and the service of a token in seconds."""

    decay_rate: float
    short: float
    long: float
    token_s: float


def boosts(
    requests: Requests,
    rate: float,
    config: EngineConfig = EngineConfig(),
    utilization: float = 1.0,
    clip: float = 0.999,
) -> Boosts:
    """The boosts of γ-boost for a sample of requests.

    γ solves γ = λ (E[e^(γS)] − 1), and b_c = (1/γ) ln(E[e^(γS) | c] / (E[e^(γS) | c] − 1)) (Yu & Scully, arXiv
    2404.08826). The service time S of a request is the time that its tokens, prompt and response, take in batches of
    ``utilization`` × the budget; this stands for S/n in an engine that serves n at a time. Expectations are means over
    the sample, classes those predicted.

    Parameters
    ----------
    requests : Requests
        The sample; its arrivals do not count.
    rate : float
        λ, requests/s.
    config : EngineConfig
    utilization : float
        Mean share of the token budget that a batch uses, in (0, 1]: 1 is the least that a token can take. A run's
        ``batch_utilization`` tells it; where the KV limit keeps batches small, as in the paper's engine, it counts.
    clip : float
        Service times above this quantile of the sample, in (0, 1], count as that quantile: a lognormal length has no
        moment generating function, and the largest value in the sample would decide alone.

    Returns
    -------
    Boosts
        The boost of a class with no request is 0.

    Raises
    ------
    InputError
        If a parameter lies outside its range, or the load λ E[S] is not below 1: then there is no γ.
    """
    instance("boosts", "requests", requests, Requests)
    instance("boosts", "config", config, EngineConfig)
    number("boosts", "rate", rate, above=0)
    number("boosts", "utilization", utilization, above=0, at_most=1)
    number("boosts", "clip", clip, above=0, at_most=1)
    batch = utilization * config.token_budget
    token_s = (config.batch_overhead_s + config.token_time_s * max(0.0, batch - config.knee_tokens)) / batch
    service = token_s * (requests.prompt_tokens + requests.response_tokens)
    service = np.minimum(service, np.quantile(service, clip))
    load = rate * service.mean()
    if load >= 1:
        raise InputError(
            f"boosts: rate = {rate!r} makes a load of {load:.3g}, but it must be below 1 for a tail to decay"
        )

    def excess(gamma: float) -> float:
        return rate * np.expm1(gamma * service).mean() - gamma

    from scipy.optimize import brentq  # slow to import, and needed here alone

    # It is convex, 0 at 0 and falls there: one root lies beyond where it is smallest.
    high = (1 - load) / service.max()
    while excess(high) <= 0:
        high *= 2
    low = high
    while excess(low) >= 0:
        low /= 2
    gamma = brentq(excess, low, high, rtol=1e-12)

    def boost(long: bool) -> float:
        members = service[requests.predicted_long == long]
        return float(-np.log1p(-1 / np.exp(gamma * members).mean()) / gamma) if len(members) else 0.0

    return Boosts(gamma, boost(False), boost(True), token_s)
