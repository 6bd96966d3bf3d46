"""Formats of trace files, one module each. To add one, write its module and enter it in `FORMATS`."""

from __future__ import annotations

from collections.abc import Sequence

from qba.errors import InputError
from qba.traces.formats import azure, azure_lmm, burstgpt, mooncake, vidur, vllm
from qba.traces.formats.form import CLOCKS, Format
from qba.traces.formats.generic import given
from qba.traces.tables.text import listed

__all__ = ["CLOCKS", "FORMATS", "Format", "given", "recognise"]

# The first whose columns are there: azure_lmm has those of azure and one more.
FORMATS = tuple(module.FORMAT for module in (azure_lmm, azure, burstgpt, mooncake, vidur, vllm))
"""The formats known by their columns."""


def recognise(place: str, header: Sequence[str]) -> Format:
    """The entry of `FORMATS` that recognises ``header``.

    Parameters
    ----------
    place : str
        Where the header stands, for messages: file and line.
    header : sequence of str
        The columns (or JSON keys) there are.

    Raises
    ------
    InputError
        If there is none, or a column of it is missing; the message says which, and what is there instead.
    """
    form = next((form for form in FORMATS if form.recognises(header)), None)
    nearest = form or min(FORMATS, key=lambda form: form.lacking(header))
    missing = [name for name in nearest.columns if name not in header]
    if form and not missing:
        return form
    if form or len(missing) < len(nearest.columns):
        problem = f"column {missing[0]} of the format {nearest.name} is missing"
    else:
        problem = f"no known format ({', '.join(form.name for form in FORMATS)}) has these columns"
    advice = (form and form.hint) or 'for another format give columns={"arrival": ..., "prompt": ..., "response": ...}'
    raise InputError(f"{place}: {problem}; there are {listed(header)}; {advice}")
