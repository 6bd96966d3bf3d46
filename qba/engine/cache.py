"""Compiled once per machine: numba's on-disk cache, made safe for many processes and for changed sources.

Left to itself that cache looks only at the file that holds the function, so an edited policy would go on running its old
code; and it writes index and data in two steps, so two processes that compile at once can leave an index that points
to the other's code. Here the files carry a digest of every source the loop is compiled from, and a lock is held while
they are read or written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numba
from filelock import FileLock
from numba import types
from numba.core.caching import FunctionCache, IndexDataCacheFile

PACKAGE = Path(__file__).resolve().parent.parent
COMPILED_FROM = (
    PACKAGE / "config.py",
    PACKAGE / "policies.py",
    PACKAGE / "definition.py",
    *sorted((PACKAGE / "engine").glob("*.py")),
    *sorted((PACKAGE / "rivals").glob("*.py")),
)


def compiled(function: Callable) -> Callable:
    """Like ``numba.njit(nogil=True, cache=True)``, with the safe cache; without one where no folder can be written."""
    dispatcher = numba.njit(nogil=True)(function)
    try:
        dispatcher._cache = SourceKeyedCache(function)
    except RuntimeError:  # numba found neither the package's folder nor the user's cache folder writable
        pass
    return dispatcher


class SourceKeyedCache(FunctionCache):
    """numba's cache of one function, under a lock, in files of their own for each state of the sources."""

    def __init__(self, py_func: Callable) -> None:
        super().__init__(py_func)
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in COMPILED_FROM)).hexdigest()[:16]
        base = f"{self._impl.filename_base}-{digest}"
        self._cache_file = IndexDataCacheFile(self._cache_path, base, self._impl.locator.get_source_stamp())
        self._lock = FileLock(Path(self._cache_path) / f"{base}.lock")

    def load_overload(self, sig, target_context):
        if _defined_here(sig):
            with self._lock:
                return super().load_overload(sig, target_context)

    def save_overload(self, sig, data):
        if _defined_here(sig):
            with self._lock:
                super().save_overload(sig, data)


def _defined_here(sig: tuple[types.Type, ...]) -> bool:
    """Whether all named tuples among the argument types are the package's own.

    A rule from elsewhere, such as a notebook, is compiled in each process: its changes would go unseen, and the cache's
    index, which names the class, could not be read by a process that does not know it.
    """
    classes = [t.instance_class for t in sig if isinstance(t, types.BaseNamedTuple)]
    return all(cls.__module__.partition(".")[0] == __name__.partition(".")[0] for cls in classes)
