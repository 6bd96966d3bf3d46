"""What a format is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

CLOCKS = ("stamps", "seconds", "milliseconds", "microseconds", "nanoseconds")
"""How arrivals are written: dates with times, or a count of a unit from any origin."""


@dataclass(frozen=True)
class Format:
    """One file format: how it is recognised, and which columns (or JSON keys) hold what.

    Attributes
    ----------
    name : str
        As shown to users.
    source : str
        Who publishes such files, and the paper to cite.
    arrival, prompt, response : str
        Columns of arrival, prompt tokens and response tokens.
    clock : str
        One of `CLOCKS`, or ``"either"``: found from the first row.
    signatures : tuple of tuple of str
        The format is recognised where all columns of one of these are there; default: the three columns.
    failure : str, optional
        Column that is not empty where the request failed; it may be missing.
    hint : str
        What to do where one of the three columns is missing although the format is recognised.
    notes : tuple of str
        What a user must know about every file of the format.
    """

    name: str
    source: str
    arrival: str
    prompt: str
    response: str
    clock: str
    signatures: tuple[tuple[str, ...], ...] = ()
    failure: str | None = None
    hint: str = ""
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.arrival, self.prompt, self.response

    def recognises(self, header: Collection[str]) -> bool:
        """Whether these columns make a file of this format."""
        return self.lacking(header) == 0

    def lacking(self, header: Collection[str]) -> int:
        """How many columns are missing to the nearest signature."""
        return min(len(set(signature) - set(header)) for signature in self.signatures or (self.columns,))
