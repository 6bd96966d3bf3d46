"""A running quantile of the waiting times, exact and at O(log n) for each new one."""

from __future__ import annotations

import heapq
import math

import numba


@numba.njit(nogil=True)
def add(low, high, quantile, wait):
    """Add one waiting time to the two heaps that split the sample at its quantile.

    ``low`` holds the order statistics 0 … j with j = ⌊γ(n − 1)⌋, negated so that the largest is on top; ``high`` holds
    the rest, smallest on top. One more value moves j by at most one place.
    """
    if len(low) and wait < -low[0]:
        heapq.heappush(low, -wait)
    else:
        heapq.heappush(high, wait)
    size = math.floor(quantile * (len(low) + len(high) - 1)) + 1
    while len(low) < size:
        heapq.heappush(low, -heapq.heappop(high))
    while len(low) > size:
        heapq.heappush(high, -heapq.heappop(low))


@numba.njit(nogil=True)
def value(low, high, quantile):
    """The γ-quantile of the sample, linear between order statistics; infinite where the sample is empty."""
    n = len(low) + len(high)
    if n == 0:
        return math.inf
    below = -low[0]
    if not len(high):
        return below
    x = quantile * (n - 1)
    return below + (x - math.floor(x)) * (high[0] - below)
