"""The requests that a simulation serves: validated, read-only columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from qba.errors import InputError
from qba.order_statistics import quantiles
from qba.validate import MOST

LONG_QUANTILE = 0.85
"""Responses above this empirical quantile are long (paper, section IV-A2)."""

MOST_SECONDS = 1e12
"""Arrivals lie within ± this: beyond it a clock in seconds, a double, no longer sees a batch go by."""

COLUMNS = ("arrival_s", "prompt_tokens", "response_tokens", "true_long", "predicted_long", "predicted_tokens", "client")


def label_long(tokens: ArrayLike, quantile: float = LONG_QUANTILE) -> np.ndarray:
    """Label the values strictly above their empirical quantile (paper, section IV-A2).

    Parameters
    ----------
    tokens : array of shape (n,)
        Lengths in tokens.
    quantile : float
        Level of the threshold; linear interpolation between order statistics.

    Returns
    -------
    bool array of shape (n,)
    """
    tokens = np.asarray(tokens)
    (threshold,) = quantiles(tokens, (quantile,))
    return tokens > threshold


class Requests:
    """Requests in order of arrival.

    Parameters
    ----------
    arrival_s : array of shape (n,)
        Arrival times in seconds, finite and never decreasing. Ties keep their order.
    prompt_tokens, response_tokens : arrays of shape (n,)
        Whole numbers of at least 1.
    true_long : bool array of shape (n,), optional
        Whether the response is long. Default: above the 0.85-quantile of ``response_tokens``.
    predicted_long : bool array of shape (n,), optional
        The label that the scheduler sees. Default: ``true_long``, a perfect predictor.
    predicted_tokens : array of shape (n,), optional
        The response tokens that the scheduler expects. Default: ``response_tokens``, a perfect predictor.
    client : array of shape (n,), optional
        Whose request it is, numbers from 0 on. Default: all of one client.

    Raises
    ------
    InputError
        If a column is empty, of another length than ``arrival_s``, or holds a value outside its range; the message
        names the column, the index and the value.
    """

    __slots__ = COLUMNS

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    true_long: np.ndarray
    predicted_long: np.ndarray
    predicted_tokens: np.ndarray
    client: np.ndarray

    def __init__(
        self,
        *,
        arrival_s: ArrayLike,
        prompt_tokens: ArrayLike,
        response_tokens: ArrayLike,
        true_long: ArrayLike | None = None,
        predicted_long: ArrayLike | None = None,
        predicted_tokens: ArrayLike | None = None,
        client: ArrayLike | None = None,
    ) -> None:
        arrival = _arrivals(arrival_s)
        n = len(arrival)
        prompt = _lengths("prompt_tokens", prompt_tokens, n)
        response = _lengths("response_tokens", response_tokens, n)
        true = label_long(response) if true_long is None else _labels("true_long", true_long, n)
        predicted = true if predicted_long is None else _labels("predicted_long", predicted_long, n)
        tokens = response if predicted_tokens is None else _lengths("predicted_tokens", predicted_tokens, n)
        whose = np.broadcast_to(np.int64(0), n) if client is None else _clients(client, n)
        for name, column in zip(COLUMNS, (arrival, prompt, response, true, predicted, tokens, whose)):
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Requests are read-only: use requests.replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("Requests are read-only")

    def __reduce__(self):  # slots without a setter need their own way through pickle
        # What is derived stays so, and costs nothing on the way.
        derived = {
            "predicted_tokens": self.predicted_tokens is self.response_tokens,
            "client": not self.client.strides[0],
        }
        return _rebuild, tuple(None if derived.get(name) else getattr(self, name) for name in COLUMNS)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __repr__(self) -> str:
        span = self.arrival_s[-1] - self.arrival_s[0]
        return (
            f"<Requests: {len(self):,} over {span:,.1f} s, {self.prompt_tokens.mean():,.0f} prompt and "
            f"{self.response_tokens.mean():,.0f} response tokens on average, {self.true_long.mean():.1%} long>"
        )

    def replace(self, **columns: ArrayLike) -> Requests:
        """Return a copy with some columns changed; the labels stay unless they are among those given."""
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            raise InputError(f"Requests.replace: no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
        kept = {name: columns.get(name, getattr(self, name)) for name in COLUMNS}
        if self.predicted_tokens is self.response_tokens and "predicted_tokens" not in columns:
            del kept["predicted_tokens"]  # a perfect prediction stays one
        if not self.client.strides[0] and "client" not in columns:
            del kept["client"]  # as above: all of one client
        return Requests(**kept)


def _rebuild(*columns: np.ndarray) -> Requests:
    return Requests(**dict(zip(COLUMNS, columns)))


def _column(name: str, values: ArrayLike) -> np.ndarray:
    if np.ma.is_masked(values):
        raise InputError(f"Requests: {name} has masked values, but every request needs one")
    try:
        column = np.array(values)
    except ValueError:
        raise InputError(f"Requests: {name} is ragged, but it must be one array of numbers") from None
    if column.ndim != 1:
        raise InputError(f"Requests: {name} has {column.ndim} dimensions, but it must have one")
    if column.dtype == bool and not name.endswith("_long"):
        raise InputError(f"Requests: {name} holds booleans, but it must hold numbers")
    if column.size and column.dtype.kind not in "buif":
        raise InputError(f"Requests: {name} holds {column[0]!r} (dtype {column.dtype}), but it must hold numbers")
    return column


def _same_length(name: str, column: np.ndarray, n: int) -> None:
    if len(column) != n:
        raise InputError(f"Requests: {name} has {len(column)} values, but arrival_s has {n}")


def _first(bad: np.ndarray) -> int:
    return int(np.argmax(bad))


def _arrivals(values: ArrayLike) -> np.ndarray:
    column = _column("arrival_s", values).astype(np.float64)
    if not len(column):
        raise InputError("Requests: arrival_s is empty, but at least one request is needed")
    bad = ~(np.abs(column) <= MOST_SECONDS)
    if bad.any():
        i = _first(bad)
        raise InputError(f"Requests: arrival_s[{i}] = {column[i]}, but arrivals must be finite, in seconds")
    bad = np.diff(column) < 0
    if bad.any():
        i = _first(bad)
        raise InputError(
            f"Requests: arrival_s[{i + 1}] = {column[i + 1]} comes after arrival_s[{i}] = {column[i]}, "
            "but arrivals must be sorted"
        )
    return column


def _lengths(name: str, values: ArrayLike, n: int) -> np.ndarray:
    column = _column(name, values)
    _same_length(name, column, n)
    # Nothing beyond 2**31 fits into a KV cache, and below it no sum of lengths can overflow 64 bits.
    bad = ~((column >= 1) & (column <= MOST))
    if column.dtype.kind == "f":
        bad |= column != np.floor(column)
    if bad.any():
        i = _first(bad)
        raise InputError(f"Requests: {name}[{i}] = {column[i]}, but lengths must be whole tokens from 1 to 2**31 - 1")
    return column.astype(np.int64)


def _clients(values: ArrayLike, n: int) -> np.ndarray:
    column = _column("client", values)
    _same_length("client", column, n)
    bad = ~((column >= 0) & (column < n) & (column == np.floor(column)))
    if bad.any():
        i = _first(bad)
        raise InputError(f"Requests: client[{i}] = {column[i]}, but clients must be numbers from 0 to {n - 1}")
    return column.astype(np.int64)


def _labels(name: str, values: ArrayLike, n: int) -> np.ndarray:
    column = _column(name, values)
    _same_length(name, column, n)
    bad = (column != 0) & (column != 1)
    if bad.any():
        i = _first(bad)
        raise InputError(f"Requests: {name}[{i}] = {column[i]}, but labels must be True or False")
    return column.astype(bool)
