"""The reduced M/G/n model: mean waiting times of the four policies from numbers alone (paper, sections II-B and III).

The engine is treated as n parallel servers, where a request's service time is all it spends between the start of its
first chunk and its last token. Rates are in requests/s, times in seconds, loads dimensionless. The model is meant to
order policies, not to match the simulator: its waits are much shorter. At a load ρ >= 1 there is no steady state and
every wait is infinite, that of the short class included, since ρ_S < 1 alone does not make its formula valid.

What is measured in simulations comes as `qba.moments.ServiceMoments` and `PromotedFraction`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from qba.errors import InputError
from qba.moments import PromotedFraction, ServiceMoments
from qba.validate import number, whole_number

Waits = tuple[float, float]
"""Mean waits of the short and the long class, s."""

# --- parallelism -----------------------------------------------------------------------------------------------------


def parallelism_formula(
    token_budget: int, decode_block: int, kv_safe_tokens: float, prompt_mean: float, response_mean: float
) -> int:
    """Effective parallelism n = ⌊min(B/q, n_safe)⌋ (paper, section II-B1).

    The paper leaves n_safe open. Here it is M_safe / (E[P] + E[D]/2): a request holds its prompt, and half of its
    response on average over its stay.

    Parameters
    ----------
    token_budget, decode_block, kv_safe_tokens
        B, q and M_safe of the engine, tokens.
    prompt_mean, response_mean : float
        E[P] and E[D] of the calibration run, tokens.
    """
    limit = _decode_concurrency("parallelism_formula", token_budget, decode_block)
    safe = number("parallelism_formula", "kv_safe_tokens", kv_safe_tokens, above=0)
    prompt = number("parallelism_formula", "prompt_mean", prompt_mean, above=0)
    response = number("parallelism_formula", "response_mean", response_mean, above=0)
    servers = math.floor(min(limit, safe / (prompt + response / 2)))
    if servers < 1:
        raise InputError(
            f"parallelism_formula: kv_safe_tokens = {safe:g}, but a request of {prompt:g} prompt and {response:g} "
            f"response tokens needs {prompt + response / 2:g}"
        )
    return servers


def parallelism_matched(
    moments: ServiceMoments, rate: float, simulated_wait_s: float, token_budget: int, decode_block: int
) -> int:
    """The n <= B/q whose FCFS wait at the calibration rate comes nearest the simulated one.

    Parameters
    ----------
    moments : ServiceMoments
        From the calibration run.
    rate, simulated_wait_s : float
        λ (requests/s) and mean waiting time (s) of the calibration run.
    token_budget, decode_block : int
        B and q of the engine, tokens.
    """
    simulated = number("parallelism_matched", "simulated_wait_s", simulated_wait_s, at_least=0)
    most = math.floor(_decode_concurrency("parallelism_matched", token_budget, decode_block))
    stable = [servers for servers in range(1, most + 1) if load(rate, moments, servers) < 1]
    if not stable:
        raise InputError(
            f"parallelism_matched: rate = {rate:g} with E[S] = {moments.mean_s:g} s needs more than "
            f"{rate * moments.mean_s:g} servers, but B/q allows {most}"
        )
    return min(stable, key=lambda servers: abs(fcfs_wait(rate, moments, servers) - simulated))


def _decode_concurrency(owner: str, token_budget: int, decode_block: int) -> float:
    budget = whole_number(owner, "token_budget", token_budget, at_least=1)
    block = whole_number(owner, "decode_block", decode_block, at_least=1)
    if block > budget:
        raise InputError(f"{owner}: decode_block = {block}, but it must be at most token_budget = {budget}")
    return budget / block


# --- queues ----------------------------------------------------------------------------------------------------------


def erlang_b(servers: int, offered_load: float) -> float:
    """Probability that all of n servers are busy when none may wait, by the usual recursion over n (Erlang 1917).

    ``offered_load`` is A = λE[S] in Erlangs.
    """
    servers = whole_number("Erlang's formula", "servers", servers, at_least=1)
    offered = number("Erlang's formula", "offered_load", offered_load, at_least=0)
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked


def erlang_c(servers: int, offered_load: float) -> float:
    """Probability that a request has to wait in M/M/n (Erlang 1917); 1 at and beyond saturation."""
    blocked = erlang_b(servers, offered_load)
    rho = offered_load / servers
    return 1.0 if rho >= 1 else blocked / (1 - rho * (1 - blocked))


def load(rate: ArrayLike, moments: ServiceMoments, servers: int) -> np.ndarray:
    """ρ = λE[S]/n, shape as ``rate`` (paper, section II-B1)."""
    servers = whole_number("load", "servers", servers, at_least=1)
    rates = np.asarray(rate)
    for value in rates.ravel().tolist():
        number("load", "rate", value, above=0)
    return rates * moments.mean_s / servers


def residual_wait(rate: float, moments: ServiceMoments, servers: int) -> float:
    """W0, the wait that is due to the requests in service: C(n, λE[S]) E[S²] / (2 n E[S]), s; infinite at ρ >= 1."""
    if load(rate, moments, servers) >= 1:
        return math.inf
    return erlang_c(servers, rate * moments.mean_s) * moments.square_s2 / (2 * servers * moments.mean_s)


def priority_waits(residual_s: float, loads: Sequence[float]) -> list[float]:
    """Mean waits of the classes of a non-preemptive priority queue, W0 / ((1 - σ_{i-1})(1 - σ_i)).

    Exact for one server (Cobham 1954), and for n exponential servers that serve all classes at one rate (Davis 1966).

    Parameters
    ----------
    residual_s : float
        W0, s.
    loads : sequence of float
        ρ of each class, the first served first; σ_i is their running sum.

    Returns
    -------
    list of float
        s; infinite from the class on at which the running sum reaches 1.
    """
    waits, above = [], 0.0
    for rho in loads:
        up_to = above + rho
        waits.append(residual_s / ((1 - above) * (1 - up_to)) if up_to < 1 else math.inf)
        above = up_to
    return waits


def fcfs_wait(rate: float, moments: ServiceMoments, servers: int) -> float:
    """Mean wait under FCFS, C/(nμ - λ) (1 + c_s²)/2 = W0/(1 - ρ), s (Lee & Longton 1959; Allen 1990)."""
    return priority_waits(residual_wait(rate, moments, servers), [float(load(rate, moments, servers))])[0]


def two_class_waits(rate: float, moments: ServiceMoments, servers: int) -> tuple[float, float]:
    """Mean waits (s) of the short and the long class when shorts go first, see `priority_waits` (paper, III-A3)."""
    return Queue(rate, moments, servers).psf()


class Queue:
    """The reduced queue at one rate, as a closure sees it.

    ``short`` and ``long`` are the classes as (share of the requests, load ρ_c).
    """

    def __init__(self, rate: float, moments: ServiceMoments, servers: int) -> None:
        per_class = rate / servers
        p = moments.short_share
        self.short = (p, per_class * p * moments.short_mean_s)
        self.long = (1 - p, per_class * (1 - p) * moments.long_mean_s)
        self.residual_s = residual_wait(rate, moments, servers)
        self.fcfs_s = fcfs_wait(rate, moments, servers)

    def priority(self, *loads: float) -> list[float]:
        """Mean waits (s) of classes with these loads, the first served first."""
        return priority_waits(self.residual_s, loads)

    def psf(self) -> Waits:
        """Mean waits (s) when shorts go first."""
        short, long = self.priority(self.short[1], self.long[1])
        return short, long

    def long_first(self) -> Waits:
        """Mean waits (s) when longs go first."""
        long, short = self.priority(self.long[1], self.short[1])
        return short, long

    def mean(self, waits: Waits) -> float:
        """Mean wait (s) over all requests."""
        shares = (self.short[0], self.long[0])
        return math.fsum(share * wait for share, wait in zip(shares, waits) if share > 0)  # 0 * inf would be NaN


# --- closures for aging ----------------------------------------------------------------------------------------------
# A closure turns the measured fraction φ of promoted longs into mean waits of both classes; the first three are readings
# of the paper (section III-B1). W0 is that of all requests together, so it does not change when requests change class,
# and mixing two classes adds their loads.
#
# All of them keep ρ_S W_S + ρ_L W_L = ρ W_FCFS, since each mixes priority orders (Kleinrock, Queueing Systems II, 1976,
# section 3.4). The waits of any two-class order that does not look at service times so lie on the segment between
# shorts-first and longs-first (Coffman & Mitrani 1980), FCFS at `fcfs_position`. Closures differ in where φ puts them.


def _mixture(queue: Queue, fraction: float) -> Waits:
    """A fraction φ of the way from PSF to FCFS, so never beyond FCFS."""
    return _between(queue.psf(), (queue.fcfs_s, queue.fcfs_s), fraction)


def _reclassify(queue: Queue, fraction: float) -> Waits:
    """Promoted longs count as shorts: λ_S' = λ_S + φ λ_L, with the mixed service times."""
    promoted, rest = fraction * queue.long[1], (1 - fraction) * queue.long[1]
    joined, last = queue.priority(queue.short[1] + promoted, rest)
    return joined, _mix(joined, last, fraction)


def _three_class(queue: Queue, fraction: float) -> Waits:
    """Promoted longs go before shorts, the other longs after them."""
    promoted, rest = fraction * queue.long[1], (1 - fraction) * queue.long[1]
    first, short, last = queue.priority(promoted, queue.short[1], rest)
    return short, _mix(first, last, fraction)


def _conservation(queue: Queue, fraction: float) -> Waits:
    """The longs' wait a fraction φ of the way from last to first; the shorts' is what the conservation law leaves.

    W_L = (1 - φ) W0 / ((1 - ρ_S)(1 - ρ)) + φ W0 / (1 - ρ_L), and W_S = (ρ W_FCFS - ρ_L W_L) / ρ_S. Both ends keep the
    law, so W_S is the same mixture of its own values there; written so, it holds without shorts too.

    It is exact for one server that tosses a coin at the start of each busy period and then serves longs first with
    probability φ, else shorts: when busy periods begin and end does not depend on the order of service. For an aging rule it is an
    assumption: φ counts the longs that go ahead, as if they went ahead of all shorts, though they had to age first.
    At φ = 0 it is PSF, at φ = 1 longs-first, and at `fcfs_position` between them FCFS: promoting a larger share costs
    the shorts more than the longs gain, and the mean wait exceeds FCFS's wherever longs take longer to serve.
    """
    return _between(queue.psf(), queue.long_first(), fraction)


def _between(start: Waits, end: Waits, fraction: float) -> Waits:
    return _mix(end[0], start[0], fraction), _mix(end[1], start[1], fraction)


def _mix(promoted: float, rest: float, fraction: float) -> float:
    """Mean over a fraction that is promoted and the rest; either may be empty, and its wait infinite."""
    return math.fsum(share * wait for share, wait in ((fraction, promoted), (1 - fraction, rest)) if share > 0)


CLOSURES: dict[str, Callable[[Queue, float], Waits]] = {
    "mixture": _mixture,
    "reclassify": _reclassify,
    "three_class": _three_class,
    "conservation": _conservation,
}
"""Closures by name: (queue, φ) -> mean waits of shorts and longs in seconds. To offer another, add it here."""


def fcfs_position(queue: Queue) -> float:
    """Where FCFS lies on the way from shorts-first (0) to longs-first (1): (1 - ρ_L) / (2 - ρ).

    A closure's mean wait exceeds FCFS's when the wait of its longs is below FCFS's. Under ``"conservation"`` that is at
    any φ above this: half of the longs at low load, a share ρ_S of them near saturation.
    """
    return (1 - queue.long[1]) / (2 - queue.short[1] - queue.long[1])


def mean_waits(
    rate: ArrayLike,
    moments: ServiceMoments,
    servers: int,
    aged: PromotedFraction,
    promoted: PromotedFraction,
    *,
    closure: str = "mixture",
    short_to_long: float = 0.0,
    long_to_short: float = 0.0,
) -> dict[str, np.ndarray]:
    """Mean waiting times of the four policies in the reduced model (paper, section III).

    Parameters
    ----------
    rate : float or array
        λ, requests/s.
    moments : ServiceMoments
        Of the *true* classes.
    servers : int
        n, see `parallelism_formula`.
    aged, promoted : PromotedFraction
        φ_A of AA and φ_Q of QBA (at its quota), fractions of the predicted-long requests.
    closure : str
        How φ enters, one of `CLOSURES`.
    short_to_long, long_to_short : float
        ε_SL and ε_LS; see `ServiceMoments.predicted`. φ is taken as given: measure it under the same errors.

    Returns
    -------
    dict of arrays
        "FCFS", "PSF", "AA" and "QBA": mean wait in s, shape as ``rate``; infinite where ρ >= 1.
    """
    if closure not in CLOSURES:
        raise InputError(f"mean_waits: closure = {closure!r}, but it must be one of {', '.join(CLOSURES)}")
    classes = moments.predicted(short_to_long, long_to_short)
    rho = load(rate, moments, servers)
    rates = np.asarray(rate)
    waits = {name: np.full(rho.shape, math.inf) for name in ("FCFS", "PSF", "AA", "QBA")}
    for i in np.ndindex(rho.shape):
        if rho[i] >= 1:
            continue
        queue = Queue(float(rates[i]), classes, servers)
        waits["FCFS"][i] = queue.fcfs_s
        waits["PSF"][i] = queue.mean(queue.psf())
        waits["AA"][i] = queue.mean(CLOSURES[closure](queue, float(aged.at(rho[i]))))
        waits["QBA"][i] = queue.mean(CLOSURES[closure](queue, float(promoted.at(rho[i]))))
    return waits
