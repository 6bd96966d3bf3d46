"""Who waits: one queue for each predicted class, in order of arrival, from which any request can be taken.

A queue is a linked list through the requests' own ``next``; row SHORT or LONG of an array of shape (2, 4) holds its ends.
A boundary's admissions walk it with a cursor: it stands on the candidate, moves on where one is put aside, and starts
again from the oldest at the next boundary.
"""

from __future__ import annotations

import numpy as np

from qba.engine.cache import built_in

HEAD, TAIL, CURSOR, BEFORE = 0, 1, 2, 3
NOBODY = -1
NO_NEED = 2**62


@built_in
def join(queue, table, r):
    """Request r comes last."""
    table[r].next = NOBODY
    if queue[HEAD] == NOBODY:
        queue[HEAD] = r
    else:
        table[queue[TAIL]].next = r
    queue[TAIL] = r


@built_in
def rewind(queue):
    """Put the cursor on the oldest."""
    queue[CURSOR], queue[BEFORE] = queue[HEAD], NOBODY


@built_in
def put_aside(queue, table):
    """Move the cursor on; the candidate goes on waiting."""
    queue[BEFORE] = queue[CURSOR]
    queue[CURSOR] = table[queue[CURSOR]].next


@built_in
def take(queue, table):
    """Take the candidate out of the queue; the cursor moves on."""
    after = table[queue[CURSOR]].next
    if queue[BEFORE] == NOBODY:
        queue[HEAD] = after
    else:
        table[queue[BEFORE]].next = after
    if after == NOBODY:
        queue[TAIL] = queue[BEFORE]
    queue[CURSOR] = after


@built_in
def by_age(table, a, b, rank):
    """The request with ``rank`` older ones in two queues from a and b on; and what follows it in each.

    The cost grows with the rank.
    """
    while True:
        if b == NOBODY or (a != NOBODY and a < b):
            r = a
            a = table[a].next
        else:
            r = b
            b = table[b].next
        if rank == 0:
            return r, a, b
        rank -= 1


@built_in
def set_need(tree, r, need):
    """Write the need of request r, `NO_NEED` once it no longer waits, into a tree whose root is the smallest of all.

    ``tree``, shape (2 n,), holds the needs in its upper half and in place i the smaller one of places 2 i and 2 i + 1.
    """
    i = r + len(tree) // 2
    tree[i] = need
    while i > 1:
        i //= 2
        tree[i] = min(tree[2 * i], tree[2 * i + 1])


@built_in
def smallest_needs(n):
    """Such a tree in which nobody waits."""
    return np.full(2 * n, NO_NEED)
