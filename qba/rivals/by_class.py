"""Rivals that share the engine between the two predicted classes; in each it is first come, first served."""

from __future__ import annotations

import math

from qba.definition import policy

SHORT, LONG = 0, 1
SERVED = 2
"""WRR's place in ``state``, after one for each queue: shorts since the last long."""
OF_SHORTS, WAITING, SIZES = 2, 3, 5
"""DRR's places in ``state``, after the deficits: whether it is the shorts' turn, how many wait in each class, and from
there on the size of each request in tokens."""


@policy(knows="class", queues=2, memory=1, limits={"k": {"at_least": 1}})
class WRR:
    """Weighted round robin 1:k: after ``k`` shorts one long. A class in which nobody waits loses its turn.

    It is QBA's quota without the aging gate: a long that was let in, whether it was its turn or no short waited, starts
    the count anew, and admissions count when they happen.

    Parameters: ``k``, shorts for each long.
    Source: classical.
    """

    k: int = 5

    def queue(self, request):
        return LONG if request.predicted_long else SHORT

    def choose(self, state, first, line):
        if first[LONG] >= 0 and (first[SHORT] < 0 or state[SERVED] >= self.k):
            return LONG
        return SHORT

    def started(self, state, request, queue):
        state[SERVED] = 0 if queue == LONG else state[SERVED] + 1


@policy(
    knows=("class", "length"), queues=2, memory=3, notes=True,
    limits={"quantum_short": {"at_least": 1}, "quantum_long": {"at_least": 1}},
)  # fmt: skip
class DRR:
    """Deficit round robin between the classes, in tokens.

    The classes are visited in turn. A visit adds the class's quantum to its deficit; then its requests are let in while
    their size, prompt and predicted response together, is no more than the deficit, which it is taken from. What is
    left is kept for the next visit, but lost when nobody waits in the class.

    Parameters: ``quantum_short`` and ``quantum_long``, tokens for a visit. Equal ones share the tokens evenly while
    both classes wait.
    Source: Shreedhar & Varghese, "Efficient Fair Queueing Using Deficit Round Robin", SIGCOMM 1995; the rule is the
    textbooks' (checked there, not in the paper).
    Left out: nothing of the rule, but it needs the size in advance, which here is a prediction: a class whose lengths
    are predicted too small gets more than its share.
    """

    quantum_short: int = 1000
    quantum_long: int = 1000

    def queue(self, request):
        return LONG if request.predicted_long else SHORT

    def choose(self, state, first, line):
        turn = SHORT if state[OF_SHORTS] else LONG
        other = LONG - turn
        if first[turn] < 0 or first[other] < 0:
            return turn if first[turn] >= 0 else other
        need = state[SIZES + first[turn]] - state[turn]
        if need <= 0:
            return turn
        # Neither goes on within its visit: the other is visited first, and again until one of the two fits.
        other_need = state[SIZES + first[other]] - state[other]
        of_turn = self.quantum_short if turn == SHORT else self.quantum_long
        of_other = self.quantum_short if other == SHORT else self.quantum_long
        return other if math.ceil(other_need / of_other) <= math.ceil(need / of_turn) else turn

    def arrived(self, state, request, queue, first):
        state[SIZES + request.number] = request.prompt_tokens + request.predicted_tokens
        state[WAITING + queue] += 1

    def started(self, state, request, queue):
        turn = SHORT if state[OF_SHORTS] else LONG
        size, other = state[SIZES + request.number], LONG - queue
        if queue != turn or size > state[queue]:  # it took visits to get there
            of_queue = self.quantum_short if queue == SHORT else self.quantum_long
            of_other = self.quantum_short if other == SHORT else self.quantum_long
            visits = max(1, math.ceil((size - state[queue]) / of_queue))
            state[queue] += visits * of_queue
            between = visits if queue == turn else visits - 1  # the other's visits meanwhile
            state[other] = state[other] + between * of_other if state[WAITING + other] > 0 else 0
        state[queue] -= size
        state[OF_SHORTS] = queue == SHORT
        state[WAITING + queue] -= 1
        if state[WAITING + queue] == 0:
            state[queue] = 0


@policy(knows="class")
class VLLMPriority:
    """vLLM's priority scheduling: the smallest (priority, arrival) first, the priority given by the predicted class.

    With shorts ahead of longs it is `qba.PSF`.

    Parameters: ``priority_short`` and ``priority_long``, whole numbers, the smaller the sooner.
    Source: vLLM, pull requests 5958 and 19057; the order was read in vllm/v1/core/sched/request_queue.py and in
    vllm/v1/request.py (priority, then arrival time, then the request's identifier).
    Left out: where the KV cache is full, vLLM's engine evicts the running request that comes last in this order; ours
    (``on_overflow="preempt"``) that admitted last.
    """

    priority_short: int = 0
    priority_long: int = 1

    def key(self, request):
        return self.priority_long if request.predicted_long else self.priority_short


@policy(knows="class", limits={"credit": {"at_least": 0}})
class VLLMPriorityAging:
    """`VLLMPriority` with credit for waiting: the smallest priority − credit × wait goes first.

    As everyone's wait grows alike, the order is that of priority + credit × arrival, which never changes.

    Parameters: ``priority_short`` and ``priority_long`` as there; ``credit``, per second. With 0.1 a long passes the
    shorts that come more than 10 s after it.
    Source: vLLM, pull request 20608 (closed, not merged; its description and the excerpt of its code in the review were
    read: aging factor 0.1 by default, in seconds).
    Left out: as there.
    """

    priority_short: int = 0
    priority_long: int = 1
    credit: float = 0.1

    def key(self, request):
        priority = self.priority_long if request.predicted_long else self.priority_short
        return priority + self.credit * request.arrival_s
