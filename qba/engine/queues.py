"""Who waits: one queue for each predicted class, in order of arrival, from which any request can be taken.

A queue is a linked list through the requests' own ``next``; row SHORT or LONG of an array of shape (2, 4) holds its ends.
A boundary's admissions walk it with a cursor: it stands on the candidate, moves on where one is put aside, and starts
again from the oldest at the next boundary.
"""

from __future__ import annotations

from qba.engine.memory import NOBODY, built_in

HEAD, TAIL, CURSOR, BEFORE = 0, 1, 2, 3


@built_in
def join(waiting, c, table, r):
    """Request r comes last in queue c."""
    table.next[r] = NOBODY
    if waiting[c, HEAD] == NOBODY:
        waiting[c, HEAD] = r
    else:
        table.next[waiting[c, TAIL]] = r
    waiting[c, TAIL] = r


@built_in
def rewind(waiting):
    """Put each cursor on the oldest."""
    for c in range(2):
        waiting[c, CURSOR], waiting[c, BEFORE] = waiting[c, HEAD], NOBODY


@built_in
def put_aside(waiting, c, table):
    """Move the cursor of queue c on; the candidate goes on waiting."""
    waiting[c, BEFORE] = waiting[c, CURSOR]
    waiting[c, CURSOR] = table.next[waiting[c, CURSOR]]


@built_in
def take(waiting, c, table):
    """Take the candidate out of queue c; the cursor moves on."""
    after = table.next[waiting[c, CURSOR]]
    if waiting[c, BEFORE] == NOBODY:
        waiting[c, HEAD] = after
    else:
        table.next[waiting[c, BEFORE]] = after
    if after == NOBODY:
        waiting[c, TAIL] = waiting[c, BEFORE]
    waiting[c, CURSOR] = after


@built_in
def by_age(table, a, b, rank):
    """The request with ``rank`` older ones in two queues from a and b on; and what follows it in each.

    The cost grows with the rank.
    """
    while True:
        if b == NOBODY or (a != NOBODY and a < b):
            r = a
            a = table.next[a]
        else:
            r = b
            b = table.next[b]
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
