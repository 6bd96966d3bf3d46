"""A running quantile of the waiting times, exact and at O(log n) for each new one.

Two heaps in one array split the sample at its quantile: from the front the order statistics 0 … j with j = ⌊γ(n − 1)⌋,
negated so that the largest is on top, from the back the rest, smallest on top. One more value moves j by at most one place.
"""

from __future__ import annotations

import math

from qba.engine.memory import built_in


@built_in
def add(waits, now, level, wait):
    """Add one waiting time to the ``now.lower`` + ``now.upper`` that ``waits`` holds."""
    last = len(waits) - 1
    if now.lower > 0 and wait < -waits[0]:
        push(waits, 0, 1, now.lower, -wait)
        now.lower += 1
    else:
        push(waits, last, -1, now.upper, wait)
        now.upper += 1
    size = math.floor(level * (now.lower + now.upper - 1)) + 1
    while now.lower < size:
        now.upper -= 1
        push(waits, 0, 1, now.lower, -pop(waits, last, -1, now.upper))
        now.lower += 1
    while now.lower > size:
        now.lower -= 1
        push(waits, last, -1, now.upper, -pop(waits, 0, 1, now.lower))
        now.upper += 1


@built_in
def value(waits, now, level):
    """The γ-quantile of the sample, linear between order statistics; infinite where the sample is empty."""
    if now.lower == 0:
        return math.inf
    below = -waits[0]
    if now.upper == 0:
        return below
    x = level * (now.lower + now.upper - 1)
    return below + (x - math.floor(x)) * (waits[len(waits) - 1] - below)


@built_in
def push(waits, top, step, size, key):
    """Put a key into the heap of ``size`` keys whose i-th lies at ``top + step * i``, smallest first."""
    i = size
    while i > 0:
        parent = (i - 1) // 2
        if waits[top + step * parent] <= key:
            break
        waits[top + step * i] = waits[top + step * parent]
        i = parent
    waits[top + step * i] = key


@built_in
def pop(waits, top, step, size):
    """Take the smallest key out of such a heap, of which ``size`` are left."""
    smallest, key = waits[top], waits[top + step * size]
    i, child = 0, 1
    while child < size:
        if child + 1 < size and waits[top + step * (child + 1)] < waits[top + step * child]:
            child += 1
        if key <= waits[top + step * child]:
            break
        waits[top + step * i] = waits[top + step * child]
        i, child = child, 2 * child + 1
    waits[top + step * i] = key
    return smallest
