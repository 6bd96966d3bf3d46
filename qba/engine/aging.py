"""The aging threshold θ: a quantile of waiting times, of which ones the policy's options say (paper, section III-A4).

Of the starts so far (exact, O(log n) for each new one), of the last w of them (O(w)), or of how long those in the
queue have waited (O(length of the queue) at each boundary).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qba.engine.memory import built_in
from qba.engine.queues import by_age

HISTORY, WINDOW, QUEUE = 0, 1, 2


class Aging(NamedTuple):
    """What θ is taken of. ``level``: γ, NaN for a policy without aging; ``window``: number of starts, 0 for all."""

    level: float
    sample: int
    longs_only: bool
    window: int


@built_in
def slide(ring, ordered, count, wait):
    """Let ``wait`` into the last w waits, by order of start and by size, as the one of number ``count`` from 0 on."""
    size = min(count, len(ring))
    place = count % len(ring)
    if size == len(ring):
        size -= 1
        gone = np.searchsorted(ordered, ring[place])
        for i in range(gone, size):
            ordered[i] = ordered[i + 1]
    ring[place] = wait
    i = size
    while i > 0 and ordered[i - 1] > wait:
        ordered[i] = ordered[i - 1]
        i -= 1
    ordered[i] = wait


@built_in
def of_sorted(waits, n, level):
    """The quantile of the first n of ``waits``, which rise; infinite where there is none."""
    if n == 0:
        return math.inf
    x = level * (n - 1)
    j = math.floor(x)
    if j + 1 == n:
        return waits[j]
    return waits[j] + (x - j) * (waits[j + 1] - waits[j])


@built_in
def of_queue(table, a, b, n, t, level):
    """The quantile of how long the n requests in two queues from a and b on have waited at time t."""
    if n == 0:
        return math.inf
    x = level * (n - 1)
    j = math.floor(x)
    if j + 1 == n:
        r, a, b = by_age(table, a, b, 0)
        return t - table.arrival[r]
    r, a, b = by_age(table, a, b, n - 2 - j)
    above = t - table.arrival[r]
    r, a, b = by_age(table, a, b, 0)
    below = t - table.arrival[r]
    return below + (x - j) * (above - below)
