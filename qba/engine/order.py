"""Policies that order what waits by keys: a heap for each of their queues, and which queue is next.

A heap is a skew heap through the requests' own ``left`` and ``right`` (Sleator & Tarjan, SIAM J. Computing 15, 1986), so
that any number of queues shares the memory of one. The smallest key is at the root, the older request where keys are
equal. A request that was let in as the oldest, though it was not at its heap's root, is dropped when it gets there.
"""

from __future__ import annotations

import math

from qba.engine.memory import NOBODY, Line, built_in
from qba.policies import OLDEST

WRONG = -2
"""Stands for a choice that is none of the queues with somebody in it."""


@built_in
def smaller(table, a, b):
    return table.key[a] < table.key[b] or (table.key[a] == table.key[b] and a < b)


@built_in
def meld(table, a, b):
    """The root of two heaps put together."""
    if a == NOBODY:
        return b
    if b == NOBODY:
        return a
    if smaller(table, b, a):
        a, b = b, a
    root = a
    while True:
        deeper = table.right[a]
        table.right[a] = table.left[a]
        if deeper == NOBODY:
            table.left[a] = b
            return root
        if smaller(table, b, deeper):
            deeper, b = b, deeper
        table.left[a] = deeper
        a = deeper


@built_in
def join(roots, table, r):
    """Request r waits in its queue."""
    table.left[r] = table.right[r] = NOBODY
    q = table.queue[r]
    roots[q] = meld(table, roots[q], r)


@built_in
def leave(roots, table, r):
    """Take request r out if it is a root; else it is dropped once it would be."""
    q = table.queue[r]
    if roots[q] == r:
        roots[q] = meld(table, table.left[r], table.right[r])


@built_in
def begun(table, r):
    return not math.isnan(table.start[r])


@built_in
def drop_begun(roots, table, now):
    """Let each root be a request that waits; and find the oldest that does."""
    for q in range(len(roots)):
        while roots[q] != NOBODY and begun(table, roots[q]):
            leave(roots, table, roots[q])
    while now.oldest < now.arrived and begun(table, now.oldest):
        now.oldest += 1


@built_in
def line(table, now):
    """What a policy may know of all who wait."""
    r = now.oldest
    return Line(now.t, now.batches, now.arrived, r, table.arrival[r], table.step[r])


@built_in
def chosen(choice, roots, now):
    """The request that a choice of queue stands for; `NOBODY`, or `WRONG`."""
    if choice == NOBODY:
        return NOBODY
    if choice == OLDEST:
        return now.oldest
    if choice < 0 or choice >= len(roots) or roots[choice] == NOBODY:
        return WRONG
    return roots[choice]
