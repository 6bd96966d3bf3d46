"""Predictors and their errors: of the class (paper, sections II-C and IV-A6) and of the length of a response."""

from __future__ import annotations

import numpy as np

from qba.requests import Requests
from qba.validate import MOST, instance, number
from qba.workload import stream


def mislabel(requests: Requests, short_to_long: float = 0.0, long_to_short: float = 0.0, seed: int = 0) -> Requests:
    """Predict each request's class with independent, asymmetric errors.

    Each request has one uniform draw, from the replication's own stream; its label flips where the draw lies below the
    error rate of its true class. So at a larger rate the same seed flips a superset.

    Parameters
    ----------
    requests : Requests
        Predictions are made anew from ``true_long``.
    short_to_long : float
        ε_SL, probability in [0, 1] that a true short is predicted long.
    long_to_short : float
        ε_LS, probability in [0, 1] that a true long is predicted short.
    seed : int
        Number of the replication (see `qba.workload.stream`).

    Returns
    -------
    Requests
        The same requests with another ``predicted_long``.
    """
    instance("mislabel", "requests", requests, Requests)
    for name, value in {"short_to_long": short_to_long, "long_to_short": long_to_short}.items():
        number("mislabel", name, value, at_least=0, at_most=1)
    draws = stream(seed, "flips").random(len(requests))
    flips = draws < np.where(requests.true_long, long_to_short, short_to_long)
    return requests.replace(predicted_long=requests.true_long ^ flips)


def predict_lengths(requests: Requests, error: float = 0.0, rank_noise: float = 0.0, seed: int = 0) -> Requests:
    """Predict each request's response tokens, with an error of the length and another of the rank.

    The length is predicted as response × e^(error · Z), Z standard normal, rounded to whole tokens of at least 1: right
    in the median, too large by e^(error²/2) on average. Then the predictions are ranked and each rank moved by
    rank_noise · n · Z', n the number of requests; in the order that this makes, the predictions are dealt out from the
    smallest to the largest. So rank noise leaves the predicted lengths as they are and only gives them to other
    requests.

    Z and Z' have streams of their own: at a larger error the same seed scales the same draws.

    Parameters
    ----------
    requests : Requests
        Predictions are made anew from ``response_tokens``.
    error : float
        Standard deviation of the logarithm of predicted over true length, at least 0.
    rank_noise : float
        Standard deviation of the moves as a share of n, at least 0; beyond 1 little is left of the order.
    seed : int
        Number of the replication (see `qba.workload.stream`).

    Returns
    -------
    Requests
        The same requests with another ``predicted_tokens``; the predicted class stays.
    """
    instance("predict_lengths", "requests", requests, Requests)
    for name, value in {"error": error, "rank_noise": rank_noise}.items():
        number("predict_lengths", name, value, at_least=0)
    if not error and not rank_noise:
        return requests.replace(predicted_tokens=None)
    n = len(requests)
    exponent = np.minimum(error * stream(seed, "length errors").standard_normal(n), np.log(MOST))
    predicted = np.clip(np.rint(requests.response_tokens * np.exp(exponent)), 1, MOST).astype(np.int64)
    if rank_noise:
        order = np.argsort(predicted, kind="stable")
        moved = np.arange(n) + rank_noise * n * stream(seed, "rank noise").standard_normal(n)[order]
        dealt = np.sort(predicted)
        predicted[order[np.argsort(moved, kind="stable")]] = dealt
    return requests.replace(predicted_tokens=predicted)


def predict(
    requests: Requests,
    seed: int = 0,
    *,
    short_to_long: float = 0.0,
    long_to_short: float = 0.0,
    length_error: float = 0.0,
    rank_noise: float = 0.0,
) -> Requests:
    """Predict class and length, each with its own errors (see `mislabel` and `predict_lengths`)."""
    return predict_lengths(mislabel(requests, short_to_long, long_to_short, seed), length_error, rank_noise, seed)
