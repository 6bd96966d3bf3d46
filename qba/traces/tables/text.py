"""How a file is opened and how its values are shown in messages."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from qba.errors import InputError

GZIP = b"\x1f\x8b"


def shown(text: str, limit: int = 40) -> str:
    """Quote a value for a message: on one line, unprintable characters escaped, cut when long."""
    return ascii(text if len(text) <= limit else text[: limit - 3] + "...")


def listed(header: Sequence[str]) -> str:
    """The columns there are, for a message."""
    names = [shown(name) for name in header[:8]]
    return ", ".join(names) + (f" and {len(header) - 8} more" if len(header) > 8 else "")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it is gzip; what goes wrong on the way becomes an `InputError`."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory, but a file is expected")
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(GZIP)) == GZIP
            raw.seek(0)
            with gzip.open(raw) if packed else raw as file:
                yield file
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(f"{path}: the gzip file is damaged or cut off") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
