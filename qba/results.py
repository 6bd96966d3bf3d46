"""Result files: datasets as netCDF-4 with their provenance, written whole or not at all.

The same dataset, parameters and locked versions give the same bytes: no clock time, machine or Python version is
stored, and the arrays are left uncompressed, because HDF5 takes zlib from the operating system and two of its
implementations pack the same numbers into different bytes (packing our real-valued waits would save a fifth).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from qba.errors import InputError
from qba.paths import PACKAGE

# Modules that show, store or run what others compute, and those of engine profiles, which no published dataset uses; every
# other module decides the numbers and counts for the hash, so that a new one cannot be forgotten.
NOT_NUMBERS = {
    "__init__", "__main__", "advice", "claims", "cli", "errors", "figures", "notebooks", "paths",
    "profile_fit", "profile_law", "profile_tables", "profiles",
    "report", "reproduce", "results", "store",
    "tables",
}  # fmt: skip

_WAITS = ["wait_mean_s", "wait_p99_s", "wait_p99_true_short_s", "wait_p99_true_long_s"]
_SERVICE = ["throughput_tokens_per_s", "batch_utilization", "kv_overflows"]
KEEPS = {
    "load_sweep": [
        *_WAITS, "wait_p50_s", "ttft_mean_s", "ttft_p99_s", "latency_mean_s", "latency_p99_s", *_SERVICE, "batches",
        "peak_kv_tokens", "blocked_admissions", "promoted_fraction", "aged_fraction",
    ],
    "sensitivity": _WAITS,
    "prediction_errors": [*_WAITS, "wait_mean_true_short_s", "wait_mean_true_long_s", "promoted_fraction"],
    "azure_standin": [
        *_WAITS, *_SERVICE, "interarrival_scv", "tokens_per_request", "length_correlation", "requests_per_window",
    ],
}  # fmt: skip
"""The statistics that each published dataset keeps: what claims and figures need, in files of at most a megabyte."""
VERSIONS_OF = ("h5netcdf", "h5py", "numba", "numpy", "qba", "scipy", "xarray")


def save(
    dataset: xr.Dataset, path: str | Path, *, parameters: Mapping[str, Any], sources: Mapping[str, str] | None = None
) -> Path:
    """Write a dataset with its provenance and return the path.

    Every variable and coordinate must carry `units` ("1" for a pure number) and `long_name`. The file gets the
    attributes `qba_parameters`, `qba_versions`, `qba_sources` (JSON texts) and `qba_code`. A file of that name is
    replaced in one step; on any failure it stays as it was. Missing folders are made.

    parameters: what the dataset was computed from, JSON values and numpy numbers or arrays.
    sources: names of input files and their SHA-256.

    Raises InputError for a missing label, a parameter that JSON cannot hold, or a path that cannot be written.
    """
    for name, variable in dataset.variables.items():
        for label in ("units", "long_name"):
            text = variable.attrs.get(label)
            if not (isinstance(text, str) and text):
                raise InputError(
                    f"dataset for {path}: variable {name!r} has {label} {text!r}; a non-empty text is needed"
                )
    stamped = dataset.drop_encoding().assign_attrs(
        qba_parameters=_json(parameters, "parameters"),
        qba_versions=_json({name: version(name) for name in VERSIONS_OF}, "versions"),
        qba_sources=_json(sources or {}, "sources"),
        qba_code=code_hash(),
    )
    # xarray would give each array of real numbers a fill value that nothing here needs.
    encoding = {name: {"_FillValue": None} for name, v in stamped.variables.items() if v.dtype.kind == "f"}
    return atomic_write(path, as_bytes(stamped, encoding))


def as_bytes(dataset: xr.Dataset, encoding: Mapping[str, Any] | None = None) -> bytes | memoryview:
    """The dataset as the content of a netCDF-4 file."""
    with _own_locks():
        return dataset.to_netcdf(engine="h5netcdf", encoding=encoding)


def _own_locks() -> AbstractContextManager:
    """While a Dask client is open, xarray would ask its cluster for locks on files that only this process sees."""
    dask = sys.modules.get("dask")  # not imported here: without it nobody has a client
    return nullcontext() if dask is None else dask.config.set(scheduler="threads")


def load(path: str | Path) -> xr.Dataset:
    """Read a result file wholly into memory; the file is closed afterwards.

    Raises InputError, naming the file, where it is missing, a directory, empty, cut short or not netCDF-4.
    """
    with _opened(path) as dataset:
        return dataset.load()


def code_hash() -> str:
    """SHA-256 over the names and the text of the modules that decide the numbers (line ends do not count)."""
    digest = hashlib.sha256()
    for file in number_modules():
        source = file.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{file.relative_to(PACKAGE).as_posix()}\n{len(source)}\n".encode() + source)
    return digest.hexdigest()


def number_modules() -> list[Path]:
    """The package's modules that `code_hash` covers, sorted by name."""
    modules = (file for file in PACKAGE.rglob("*.py") if _top_name(file) not in NOT_NUMBERS)
    return sorted(modules, key=lambda file: file.relative_to(PACKAGE).as_posix())


def stale(path: str | Path) -> str | None:
    """Why a result file does not belong to the present code, or None where it does."""
    with _opened(path) as dataset:
        made_by = dataset.attrs.get("qba_code")
    if made_by is None:
        return f"{path}: no qba_code attribute says which code made it"
    if made_by != code_hash():
        return f"{path}: made by code {made_by[:12]}, the present code is {code_hash()[:12]}; run make reproduce"
    return None


def atomic_write(path: str | Path, content: str | bytes | memoryview) -> Path:
    """Write text (as UTF-8, line ends as given) or bytes so that `path` holds all of it or what it held before.

    Missing folders are made. Raises InputError where the path is a directory or cannot be written.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    if path.is_dir():
        raise InputError(f"{path}: is a directory; a file name is needed")
    # In the same folder, since a file can replace another in one step only within one file system.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); choose another folder") from error
    return path


@contextmanager
def _opened(path: str | Path) -> Iterable[xr.Dataset]:
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a directory; a netCDF file is needed")
    if not path.exists():
        raise InputError(f"{path}: no such file; make reproduce writes the results")
    try:
        with _own_locks(), xr.open_dataset(path, engine="h5netcdf") as dataset:
            yield dataset
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise InputError(f"{path}: {_reading_problem(path, error)}") from error


def _reading_problem(path: Path, error: Exception) -> str:
    """One line of plain words for the many ways in which HDF5 refuses a file."""
    if isinstance(error, PermissionError):
        return "may not be read (permission denied)"
    if path.stat().st_size == 0:
        return "is empty; a netCDF file is needed"
    if "truncated" in str(error):
        return "is cut short; write it anew with make reproduce"
    if "signature" in str(error):
        return "is not a netCDF-4 file"
    return f"is damaged, or not a netCDF-4 file ({str(error.args[0]).splitlines()[0]})"


def _json(value: Mapping[str, Any], what: str) -> str:
    def plain(item: Any) -> Any:
        if isinstance(item, (np.generic, np.ndarray)):
            return item.tolist()
        if isinstance(item, Path):
            return item.as_posix()
        raise InputError(f"{what}: {item!r} of type {type(item).__name__} cannot be stored as JSON")

    try:
        return json.dumps(dict(value), default=plain, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what}: NaN and infinity cannot be stored as JSON; use None or a text") from error


def version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # the package itself, run from a checkout without being installed
        return "not installed"


def _top_name(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]
