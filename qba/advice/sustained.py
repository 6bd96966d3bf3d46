"""The highest rate at which each policy keeps a bound: one trace, sped up or slowed down as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import xarray as xr

from qba.advice.description import full_rate
from qba.advice.measures import Bound, attrs, check_members, bound, estimates, window_edges
from qba.advice.replays import side_by_side
from qba.config import EngineConfig
from qba.engine.simulate import serve
from qba.errors import InputError
from qba.intervals import ESTIMATE
from qba.policies import PAPER, Policy
from qba.requests import Requests
from qba.sweeps import check_policies, policy_labels

SHARES = (0.02, 0.05, *(round(0.1 * i, 1) for i in range(1, 13)))
"""Rates of the curve, over the one that the engine serves with full batches."""
TOLERANCE = 0.002
"""Relative width at which the bisection ends."""


def capacity(
    requests: Requests,
    slo: str | Bound,
    policies: Sequence[Policy] = tuple(cls() for cls in PAPER),
    config: EngineConfig = EngineConfig(),
    *,
    progress: bool = True,
) -> xr.Dataset:
    """Bisect for the rate up to which a bound is kept, under each policy.

    The trace is sped up or slowed down as a whole, so that its swings and bursts stay in proportion, and all policies see
    the same requests. A curve over fixed rates comes first; the bisection is between its last rate that keeps the bound
    and the first that does not. The interval is where the ends of the measure's own 95 % interval cross the bound.

    Parameters
    ----------
    requests : Requests
    slo : str or Bound
        Such as ``"p99 <= 2.0"`` (see `measures.bound`).
    policies, config, progress
        See `compare`.

    Returns
    -------
    xarray.Dataset
        By (policy, estimate): `sustained_rate`, requests/s; 0 where the bound is broken at the lowest rate tried, infinite
        where it is kept at the highest. By (policy, rate, estimate): the measure, in seconds. Attributes: ``slo``,
        ``own_rate`` (that of the trace), ``full_rate`` (that of full batches).

    Raises
    ------
    InputError
        If the bound cannot be read, all requests arrive at once, or one is longer than the KV limits allow.
    """
    limit = bound(slo) if isinstance(slo, str) else slo
    policies = check_policies(policies)
    check_members(requests, [limit.measure])
    span = float(requests.arrival_s[-1] - requests.arrival_s[0])
    if span == 0:
        raise InputError(f"capacity: {len(requests):,} requests arrive at once, so they have no rate to change")
    own, most = (len(requests) - 1) / span, full_rate(requests, config)
    edges = window_edges(len(requests))
    rates = [share * most for share in SHARES]

    def measured(policy: Policy, rate: float) -> np.ndarray:
        paced = requests.replace(arrival_s=(requests.arrival_s - requests.arrival_s[0]) * (own / rate))
        return estimates(paced, serve(paced, policy, config), (limit.measure,), edges)[0]

    def sustained(policy: Policy, values: np.ndarray) -> list[float]:
        known = dict(zip(rates, values))

        def end(i: int, rate: float) -> float:
            if rate not in known:
                known[rate] = measured(policy, rate)
            return known[rate][i]

        # The measure's upper end crosses first: it gives the lower end of the rate.
        value, low, high = (_crossing(partial(end, i), rates, limit.limit) for i in (0, 2, 1))
        return [
            value,
            min(low, value),
            max(high, value),
        ]  # where a curve is not monotone, each may find another crossing

    pairs = [(policy, rate) for policy in policies for rate in rates]
    curve = np.array(side_by_side(measured, pairs, len(requests), progress))
    curve = curve.reshape(len(policies), len(rates), len(ESTIMATE))
    found = side_by_side(sustained, list(zip(policies, curve)), len(requests), progress)
    names = policy_labels(policies)
    return xr.Dataset(
        {
            "sustained_rate": (("policy", "estimate"), found, attrs("requests/s", f"highest rate with {limit}")),
            limit.measure.variable: (("policy", "rate", "estimate"), curve, attrs("s", limit.measure.text)),
        },
        {
            "policy": ("policy", names, attrs("1", "scheduling policy")),
            "rate": ("rate", rates, attrs("requests/s", "mean arrival rate")),
            "estimate": ("estimate", list(ESTIMATE), attrs("1", "estimate, and both ends of its 95 % interval")),
        },
        {"slo": str(limit), "own_rate": own, "full_rate": most, "requests": len(requests), "engine": repr(config)},
    )


def _crossing(value: Callable[[float], float], rates: Sequence[float], limit: float) -> float:
    """The rate at which a value first exceeds the limit, to `TOLERANCE`; NaN where the value is."""
    values = [value(rate) for rate in rates]
    if np.isnan(values).any():
        return np.nan
    broken = [i for i, v in enumerate(values) if v > limit]
    if not broken:
        return np.inf
    if broken[0] == 0:
        return 0.0
    low, high = rates[broken[0] - 1], rates[broken[0]]
    while high - low > TOLERANCE * low:
        middle = (low + high) / 2
        low, high = (low, middle) if value(middle) > limit else (middle, high)
    return low
