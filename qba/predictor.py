"""The binary length predictor and its errors (paper, sections II-C and IV-A6)."""

from __future__ import annotations

import numpy as np

from qba.requests import Requests
from qba.validate import instance, number
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
