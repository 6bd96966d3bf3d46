"""What the loop works on: structured arrays, allocated before it runs and borrowed by it.

numba counts references to an array each time a function takes it or a view is made of it, which costs a quarter of a run.
The loop therefore reads and writes through plain addresses (`borrow`); whoever calls it keeps the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from qba.config import KV_PROJECTIONS, EngineConfig
from qba.policies import STATE_SIZE

SHARE = np.dtype([("id", "i8"), ("rest", "i8")])
"""A request that decodes or was evicted, and its response tokens still to come: of one that decodes, in addition to the
ledger's ``given``, so that a whole block for everyone is one addition."""

LEDGER = np.dtype(
    [
        ("t", "f8"),  # the clock
        ("threshold", "f8"),  # θ
        ("arrived", "i8"),  # requests so far: come, started, gone
        ("begun", "i8"),
        ("done", "i8"),
        ("waiting_long", "i8"),  # of those who wait for a first start, the predicted-long ones
        ("left", "i8"),  # budget left in this batch
        ("decoding", "i8"),  # requests that decode in this batch
        ("joining", "i8"),  # and with those whose prefill it completes
        ("fresh", "i8"),  # the first decoding request that has no token yet
        ("given", "i8"),  # decode tokens that a request decoding from the start would have been given
        ("least", "i8"),  # the smallest rest among the decoding requests
        ("partial", "i8"),  # the prefill under way or -1, its prompt and its response tokens still to come
        ("prompt_left", "i8"),
        ("partial_rest", "i8"),
        ("live", "i8"),  # KV tokens of the requests in flight: now, and once they end
        ("reserved", "i8"),
        ("evicted", "i8"),  # height of the stack of evicted requests
        ("oldest", "i8"),  # of those who wait, under a policy that orders them by keys
        ("lower", "i8"),  # waits in the two heaps of the history
        ("upper", "i8"),
        ("busy", "f8"),  # totals of the run
        ("batches", "i8"),
        ("tokens", "i8"),
        ("peak_kv_tokens", "i8"),
        ("kv_overflows", "i8"),
        ("blocked_admissions", "i8"),
        ("promoted", "i8"),
        ("aged", "i8"),
        ("evictions", "i8"),
        ("readmissions", "i8"),
        ("problem", "i8"),  # of the policy; the run then ends
    ]
)
"""What the loop counts, in one record; a run's totals are what it holds at the end."""

BATCH_LOG = np.dtype(
    [
        ("time_s", "f8"),
        ("duration_s", "f8"),
        ("decode_tokens", "i8"),
        ("prefill_tokens", "i8"),
        ("live_kv_tokens", "i8"),
        ("waiting_short", "i8"),
        ("waiting_long", "i8"),
        ("threshold_s", "f8"),
        ("counter", "i8"),
        ("debt", "i8"),
        ("admissions", "i8"),
        ("promotions", "i8"),
        ("evictions", "i8"),
        ("readmissions", "i8"),
    ]
)

ENGINE = np.dtype(
    [
        ("token_budget", "i8"),
        ("decode_block", "i8"),
        ("kv_capacity", "i8"),
        ("kv_safe_tokens", "f8"),
        ("batch_overhead_s", "f8"),
        ("token_time_s", "f8"),
        ("knee_tokens", "f8"),
        ("kv_projection", "i8"),
        ("decode_partial", "?"),
        ("skip", "?"),
        ("preempt", "?"),
    ],
    align=True,
)
"""`qba.EngineConfig` as the loop takes it; ``kv_projection`` is the place of its name in `KV_PROJECTIONS`."""

WRONG_CHOICE, IDLE, WRONG_KEY, WRONG_QUEUE, UNSTEADY = 1, 2, 3, 4, 5
"""What can be wrong with a policy, as the ledger's ``problem``."""
NOBODY = -1
NO_NEED = 2**62
"""Stands for "more than any number of tokens"."""


def built_in(function: Callable) -> Callable:
    """Like ``numba.njit``, and built into the compiled function that calls it, so that the call costs nothing."""
    return numba.njit(nogil=True, forceinline=True)(function)


def users_own(function: Callable) -> Callable:
    """Like `built_in`, for a method of a user's: an index beyond an array is an IndexError and not another's memory."""
    return numba.njit(nogil=True, forceinline=True, boundscheck=True)(function)


class Given(NamedTuple):
    """The columns of the requests, which are numbered in order of arrival; shape (n,) each.

    The last three are empty where the policy does not know them.
    """

    arrival: np.ndarray
    prompt: np.ndarray
    response: np.ndarray
    predicted_long: np.ndarray
    predicted_tokens: np.ndarray
    client: np.ndarray
    true_long: np.ndarray


class Made(NamedTuple):
    """The columns that a run fills: times are NaN until they come."""

    start: np.ndarray
    prefill_end: np.ndarray
    first_token: np.ndarray
    finish: np.ndarray
    promoted: np.ndarray


class Line(NamedTuple):
    """What a policy may know of all who wait (see `qba.policies`)."""

    now: float
    batches: int
    arrived: int
    oldest: int
    oldest_arrival: float
    oldest_batches: int


class Order(NamedTuple):
    """Columns for a policy that orders by keys, empty for the others; shape (n,) each.

    key, queue: where a request waits. left, right: below it in that queue's heap. step: batches served before it came.
    """

    key: np.ndarray
    queue: np.ndarray
    left: np.ndarray
    right: np.ndarray
    step: np.ndarray


NO_ORDER = Order(np.empty(0), *(np.empty(0, np.int64) for _ in range(4)))


class Table(NamedTuple):
    """All columns as the loop borrows them; ``next`` is who waits after a request in its queue."""

    arrival: np.ndarray
    prompt: np.ndarray
    response: np.ndarray
    predicted_long: np.ndarray
    predicted_tokens: np.ndarray
    client: np.ndarray
    true_long: np.ndarray
    start: np.ndarray
    prefill_end: np.ndarray
    first_token: np.ndarray
    finish: np.ndarray
    promoted: np.ndarray
    next: np.ndarray
    key: np.ndarray
    queue: np.ndarray
    left: np.ndarray
    right: np.ndarray
    step: np.ndarray


class Memory(NamedTuple):
    """All that a run works on: the requests, the record of batches (empty if none is wanted) and working space."""

    given: Given
    made: Made
    next: np.ndarray
    order: Order
    roots: np.ndarray
    log: np.ndarray
    ledger: np.ndarray
    state: np.ndarray
    waiting: np.ndarray
    needs: np.ndarray
    decoding: np.ndarray
    evicted: np.ndarray
    waits: np.ndarray
    ring: np.ndarray


def allocate(
    given: Given,
    config: EngineConfig,
    log: np.ndarray | None,
    history: bool,
    window: int,
    queues: int = 0,
    own: int = 0,
) -> Memory:
    """Memory for a run.

    ``history``: whether all waits are kept for θ; ``window``: or how many of the last. ``queues``: of a policy that orders
    by keys, 0 for the others; ``own``: numbers of its own.
    """
    n = len(given.arrival)
    ledger = np.zeros(1, LEDGER)
    ledger["partial"], ledger["least"] = NOBODY, NO_NEED
    return Memory(
        Given(*map(np.ascontiguousarray, given)),
        Made(*(np.full(n, np.nan) for _ in range(4)), np.zeros(n, bool)),
        np.empty(n, np.int64),
        Order(np.empty(n), *(np.empty(n, np.int64) for _ in range(4))) if queues else NO_ORDER,
        np.full(queues, NOBODY) if queues else NO_ORDER.queue,
        np.empty(0, BATCH_LOG) if log is None else log,
        ledger,
        np.zeros(queues + own) if queues else np.zeros(STATE_SIZE, np.int64),
        np.full((2, 4), NOBODY),
        np.full(2 * n if config.on_blocked == "skip" else 0, NO_NEED),
        # Each request in flight holds at least one token, and none is let in past the safe limit but one that is alone.
        np.empty(min(n, int(config.kv_safe_tokens)) + 1, SHARE),
        np.empty(n if config.on_overflow == "preempt" else 0, SHARE),
        np.empty(n if history else window),
        np.empty(window),
    )


def engine_record(config: EngineConfig) -> np.void:
    """The engine's parameters as the loop takes them."""
    engine = np.zeros((), ENGINE)
    for name in ENGINE.names[:7]:
        engine[name] = getattr(config, name)
    engine["kv_projection"] = KV_PROJECTIONS.index(config.kv_projection)
    engine["decode_partial"] = config.decode_partial
    engine["skip"] = config.on_blocked == "skip"
    engine["preempt"] = config.on_overflow == "preempt"
    return engine[()]


@intrinsic
def _pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@numba.njit(nogil=True, inline="always")
def borrow(array):
    """The same array without a count of references; the caller of the loop keeps the memory."""
    return carray(_pointer(array.ctypes.data), array.shape, array.dtype)
