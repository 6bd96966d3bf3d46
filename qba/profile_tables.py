"""Measured batches from files: a user's own measurements, and the operator tables of the Vidur simulator.

Vidur (Agrawal et al., MLSys 2024; microsoft/vidur, MIT) times each operator of one transformer layer against the number
of tokens in the batch. Its own batch time is the sum over the operators of a layer times the number of layers; that is
done here, and the embedding, which Vidur times but leaves out, is counted once. Not in the tables, and so not in the
sums: attention over the KV cache, the first of a layer's two residual additions, the output layer, sampling,
communication between GPUs, and what the CPU does between batches.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from qba.errors import InputError
from qba.profile_fit import fit_profile
from qba.profiles import Profile, vidur_provenance
from qba.traces.tables import Table, open_table
from qba.traces.tables.text import listed, shown
from qba.traces.values import numbers
from qba.validate import MOST, whole_number

LAYER_OPERATORS = (
    "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm", "mlp_up_proj",
    "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip
"""Vidur's operators that each layer runs once."""
MODEL_OPERATORS = ("emb",)
"""Those that the model runs once."""
OPTIONAL = {"post_attention_layernorm", "emb"}
"""Absent where a model has attention and MLP side by side, and from tables of single layers."""
PRESET_TOKENS = 2048
"""Batches up to here are fitted: the token budgets that engines are run with. The law bends further up."""
RANGES = ((1, 64), (65, 256), (257, 1024), (1025, 2048), (2049, 4096))
"""Tokens in a batch for which a preset says how far the law is off."""
UNITS = {"seconds": 1.0, "milliseconds": 1e-3}


def read_batches(path: str | Path, columns: Mapping[str, str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Measured batches from a CSV file: tokens and seconds, two arrays of shape (n,), as `qba.fit_profile` takes them.

    Parameters
    ----------
    path : str or Path
    columns : mapping, optional
        Names of the columns in the file: ``{"tokens": ..., "seconds": ...}`` or ``{"tokens": ..., "milliseconds": ...}``.
        Default: the file has a column ``tokens`` and either ``seconds`` or ``milliseconds``.

    Raises
    ------
    InputError
        For a file that cannot be read, a missing column, or a cell that is not a positive number; with line and column.
    """
    table = open_table(path)
    place, header = f"{table.path}, {table.place(None)}", table.header
    if columns is None:
        units = [unit for unit in UNITS if unit in header]
        if "tokens" not in header or len(units) != 1:
            raise InputError(
                f"{place}: columns tokens and either seconds or milliseconds are needed, or columns="
                f'{{"tokens": ..., "seconds": ...}} to name others; there are {listed(header)}'
            )
        columns = {"tokens": "tokens", units[0]: units[0]}
    elif not isinstance(columns, Mapping) or set(columns) not in [{"tokens", unit} for unit in UNITS]:
        raise InputError(
            f'read_batches: columns must be {{"tokens": ..., "seconds": ...}} or '
            f'{{"tokens": ..., "milliseconds": ...}}, not {columns!r:.80}'
        )
    for role, name in columns.items():
        if name not in header:
            raise InputError(f"{place}: no column {name!r} for the {role}; there are {listed(header)}")
    (unit,) = set(columns) - {"tokens"}
    cells = Cells(table, list(columns.values()))
    times = cells.numbers(columns[unit], f"times must be positive numbers of {unit}", above=0)
    return cells.tokens(columns["tokens"]), times * UNITS[unit]


def read_vidur_operators(
    path: str | Path, *, tensor_parallel: int = 1, layers: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """Batch times from one of Vidur's operator tables (``mlp.csv``): tokens and seconds, two arrays of shape (n,).

    The medians of a layer's operators are summed and multiplied by the number of layers; the embedding is added once.
    The table must hold all operators of `LAYER_OPERATORS`, ``post_attention_layernorm`` apart, and no other than these.

    Parameters
    ----------
    path : str or Path
    tensor_parallel : int
        The rows to take: GPUs that share each layer. The time that they take to communicate is not in the table.
    layers : int
        Transformer layers of the model; 32 in Llama-2-7B.

    Raises
    ------
    InputError
        For a file that cannot be read, a missing or unknown operator, a number of GPUs that was not measured, or a cell
        that is not a number; with line and column.
    """
    layers = whole_number("read_vidur_operators", "layers", layers, at_least=1)
    tensor_parallel = whole_number("read_vidur_operators", "tensor_parallel", tensor_parallel, at_least=1)
    table = open_table(path)
    times = _operators(table)
    cells = Cells(table, ["num_tokens", "num_tensor_parallel_workers", *times])
    tokens, workers = (cells.tokens(name) for name in ("num_tokens", "num_tensor_parallel_workers"))
    chosen = workers == tensor_parallel
    if not chosen.any():
        there = ", ".join(str(n) for n in np.unique(workers))
        raise InputError(f"{path}: no rows for tensor_parallel = {tensor_parallel}; there are {there}")
    milliseconds = np.zeros(tokens.size)
    for column, operator in times.items():
        values = cells.numbers(column, "times must be numbers of milliseconds", at_least=0)
        milliseconds += values * (layers if operator in LAYER_OPERATORS else 1)
    return tokens[chosen], milliseconds[chosen] / 1e3


def vidur_profile(path: str | Path, name: str, *, tensor_parallel: int = 1, layers: int = 32) -> Profile:
    """Fit the law to a Vidur table's batches of up to `PRESET_TOKENS` tokens: the presets were made by this.

    The parameters are rounded to three digits. The provenance names the file with its hash, what was summed and fitted,
    and how far the rounded law is off from the batches, range by range, also beyond those fitted.

    Raises InputError as `read_vidur_operators` and `qba.fit_profile` do.
    """
    tokens, seconds = read_vidur_operators(path, tensor_parallel=tensor_parallel, layers=layers)
    near = tokens <= PRESET_TOKENS
    fit = fit_profile(tokens[near], seconds[near], name=name)
    profile = Profile.from_fit(fit, digits=3)
    off = np.abs(profile.seconds(tokens) / seconds - 1)
    ranges = [(low, high, off[(tokens >= low) & (tokens <= high)]) for low, high in RANGES]
    errors = ", ".join(
        f"{low}-{high} tokens {np.median(part):.1%} ({part.max():.1%})" for low, high, part in ranges if part.size
    )
    path = Path(path)
    provenance = vidur_provenance(
        filename=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        operators=", ".join(name for name in _operators(open_table(path)).values() if name in LAYER_OPERATORS),
        layers=layers,
        tensor_parallel=tensor_parallel,
        batches=int(near.sum()),
        most_tokens=PRESET_TOKENS,
        outliers=int(fit.outliers),
        errors=errors,
    )
    return Profile.from_fit(fit, provenance=provenance, digits=3)


class Cells:
    """Columns of a table of numbers."""

    def __init__(self, table: Table, names: list[str]) -> None:
        self.table = table
        parts = list(table.blocks(names))
        self.text = {name: pa.concat_arrays([part[name] for part in parts]) for name in names}

    def numbers(self, name: str, wanted: str, above: float = -np.inf, at_least: float = -np.inf) -> np.ndarray:
        """A column as float64 array of shape (n,). Raises InputError for the first cell that is not as wanted."""
        found = numbers(self.text[name])
        values = found.values.astype(np.float64)
        self._refuse(name, found.missing | found.bad | ~((values > above) & (values >= at_least)), wanted)
        return values

    def tokens(self, name: str) -> np.ndarray:
        """A column of whole numbers from 1 on as int64 array of shape (n,). Raises InputError as `numbers` does."""
        wanted = "tokens must be whole numbers of at least 1"
        values = self.numbers(name, wanted, at_least=1)
        self._refuse(name, (values != np.floor(values)) | (values > MOST), wanted)
        return values.astype(np.int64)

    def _refuse(self, name: str, bad: np.ndarray, wanted: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            cell = self.text[name][row].as_py()
            place = f"{self.table.path}, {self.table.place(row)}"
            raise InputError(f"{place}, column {name}: {shown(cell) if cell else 'an empty cell'}, but {wanted}")


def _operators(table: Table) -> dict[str, str]:
    """{column: operator} of the medians in a Vidur table."""
    place, header = f"{table.path}, {table.place(None)}", table.header
    found = {name: match[1] for name in header if (match := re.fullmatch(r"time_stats\.(\w+)\.median", name))}
    known = (*LAYER_OPERATORS, *MODEL_OPERATORS)
    missing = [f"time_stats.{name}.median" for name in known if name not in {*found.values(), *OPTIONAL}]
    missing += [name for name in ("num_tokens", "num_tensor_parallel_workers") if name not in header]
    if missing:
        raise InputError(f"{place}: no column {missing[0]}, but Vidur's table of operators (mlp.csv) is needed")
    for column, operator in found.items():
        if operator not in known:
            raise InputError(f"{place}: unknown operator in {column}; known are {', '.join(known)}")
    return found
