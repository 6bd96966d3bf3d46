"""Writing requests as a trace file, in the columns of the Azure traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from qba.errors import InputError
from qba.requests import Requests


def write_trace(requests: Requests, path: str | Path, start: str = "2024-05-10 00:00:00") -> Path:
    """Write TIMESTAMP (UTC, microseconds), ContextTokens, GeneratedTokens, as the Azure traces of 2024 have them.

    Labels are not written: a reader derives them.

    Parameters
    ----------
    requests : Requests
        What to write.
    path : str or Path
        The file; one that exists is replaced.
    start : str
        Time of the request that arrives at 0 s, UTC.

    Raises
    ------
    InputError
        If ``start`` is not a date with time, or the file cannot be written.
    """
    try:
        origin = np.datetime64(start, "us")
    except ValueError:
        raise InputError(f"write_trace: start = {start!r}, but it must be a time such as 2024-05-10 00:00:00") from None
    times = origin + np.rint(requests.arrival_s * 1e6).astype("timedelta64[us]")
    frame = pd.DataFrame(
        {
            "TIMESTAMP": [f"{str(time).replace('T', ' ')}+00:00" for time in times],
            "ContextTokens": requests.prompt_tokens,
            "GeneratedTokens": requests.response_tokens,
        }
    )
    try:
        frame.to_csv(path, index=False, lineterminator="\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    return Path(path)
