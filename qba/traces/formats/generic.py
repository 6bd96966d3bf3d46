"""Any other file: the user says which column is which."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from qba.errors import InputError
from qba.traces.formats.form import Format
from qba.traces.tables.text import listed

ROLES = ("arrival", "prompt", "response")


def given(place: str, header: Sequence[str], columns: Mapping[str, str]) -> Format:
    """The format that a user's ``columns`` describe.

    Parameters
    ----------
    place : str
        Where the header stands, for messages: file and line.
    header : sequence of str
        The columns there are.
    columns : mapping
        ``{"arrival": ..., "prompt": ..., "response": ...}``.

    Raises
    ------
    InputError
        If roles are missing or unknown, a column is not there, or two roles share one.
    """
    wanted = 'columns must be {"arrival": ..., "prompt": ..., "response": ...}'
    if not isinstance(columns, Mapping) or set(columns) != set(ROLES):
        raise InputError(f"read_trace: {wanted}, not {columns!r}")
    for role in ROLES:
        if columns[role] not in header:
            near = difflib.get_close_matches(str(columns[role]), header, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"{place}: no column {columns[role]!r} to read the {role} from; there are {listed(header)}{meant}"
            )
    if len(set(columns.values())) < len(ROLES):
        raise InputError(f"read_trace: {wanted} with three different columns, not {dict(columns)!r}")
    return Format("columns as given", "the user", *(columns[role] for role in ROLES), clock="either")
