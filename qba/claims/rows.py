"""What a claim is, the list of all, and names that its checks share.

W is the mean waiting time, P99 the 99th percentile of the waiting time, S99 and L99 the same over true-short and true-long
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import xarray as xr

from qba.claims.evidence import Finding

Results = Mapping[str, xr.Dataset]
W, P99, S99, L99 = "wait_mean_s", "wait_p99_s", "wait_p99_true_short_s", "wait_p99_true_long_s"
REFERENCE_RATE = 32


@dataclass(frozen=True)
class Claim:
    """One claim: what the paper says and how it is checked. ``paper`` is a number, or a text for a statement."""

    id: str
    text: str
    paper: float | str
    check: Callable[[Results], Finding]
    unit: str = "s"

    @property
    def kind(self) -> str:
        return "number" if self.id.startswith("N") else "statement"


CLAIMS: list[Claim] = []
