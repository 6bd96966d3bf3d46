"""Replays of a whole trace, side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tqdm import tqdm

Found = TypeVar("Found")

SIDE_BY_SIDE = 4_000_000
"""Requests in a trace up to which replays go on side by side: each takes some hundred bytes a request."""


def side_by_side(
    replay: Callable[..., Found], cases: Sequence[tuple], requests: int, progress: bool = True
) -> list[Found]:
    """``replay(*case)`` for each case, on all cores (the compiled loop releases Python's lock).

    requests: how many one replay serves. What ``replay`` returns is kept, so it should be small.
    """
    threads = ThreadPoolExecutor((os.cpu_count() or 1) if requests <= SIDE_BY_SIDE else 1)
    try:
        futures = [threads.submit(replay, *case) for case in cases]
        bar = tqdm(futures, unit="replay", disable=not progress or len(cases) == 1, leave=False)
        return [future.result() for future in bar]
    finally:
        threads.shutdown(cancel_futures=True)
