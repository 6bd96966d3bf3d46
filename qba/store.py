"""A folder that keeps the finished pieces of a long computation, so that an interrupted one goes on where it was.

Each piece is a netCDF file, written whole or not at all. A manifest says what is computed and with which code; a folder
that belongs to anything else is refused, so that numbers are never mixed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from qba.errors import InputError
from qba.results import VERSIONS_OF, as_bytes, atomic_write, code_hash, load, version

MANIFEST = "manifest.json"


class Store:
    """The pieces of one computation in a folder, which is made if need be.

    Parameters
    ----------
    folder : str or Path
    description : mapping of str to str
        What decides the numbers, as texts. The code's hash and the versions of the libraries are added.

    Raises
    ------
    InputError
        If the folder holds pieces of something else, the message says what differs; or if it cannot be written.
    """

    def __init__(self, folder: str | Path, description: Mapping[str, str]) -> None:
        self.folder = Path(folder)
        versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS_OF)
        described = {**description, "versions": versions, "code": code_hash()}
        manifest = self.folder / MANIFEST
        if manifest.exists():
            self._compare(manifest, described)
        elif self.folder.is_dir() and any(self.folder.iterdir()):
            raise InputError(f"store = {str(folder)!r}: the folder holds other files; name an empty or a new one")
        else:
            atomic_write(manifest, json.dumps(described, indent=1, ensure_ascii=False) + "\n")

    def _compare(self, manifest: Path, described: Mapping[str, str]) -> None:
        try:
            there = json.loads(manifest.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{manifest}: cannot be read ({error}); delete the folder to begin anew") from error
        differing = [name for name in {**there, **described} if there.get(name) != described.get(name)]
        if differing:
            name = differing[0]
            raise InputError(
                f"store = {str(self.folder)!r} belongs to another computation: {', '.join(differing)} differ "
                f"({name}: {_short(there.get(name))} there, {_short(described.get(name))} now); "
                "name another folder, or delete this one to begin anew"
            )

    def load(self, piece: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """A finished piece, or None; one that is damaged counts as unfinished."""
        path = self._path(piece)
        if not path.exists():
            return None
        try:
            values = load(path).values_.values
        except (InputError, AttributeError):
            return None
        return values if values.shape == shape else None

    def save(self, piece: int, values: np.ndarray) -> None:
        """Keep a finished piece."""
        dims = [f"axis_{i}" for i in range(values.ndim)]
        atomic_write(self._path(piece), as_bytes(xr.Dataset({"values_": (dims, values)})))

    def _path(self, piece: int) -> Path:
        return self.folder / f"piece_{piece:06d}.nc"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
