"""The published traces: where they live, how they are recognised, and how they get here.

No published trace is part of this repository. A file is searched for at an explicit path, in the folder that the
environment variable QBA_DATA_DIR names, and in data/; it is taken only if its SHA-256 is the published file's.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from qba.errors import InputError
from qba.paths import data_dir
from qba.validate import number


@dataclass(frozen=True)
class TraceFile:
    """A published file: our name for it, where to get it, its hash, its size in bytes and its number of rows."""

    name: str
    url: str
    sha256: str
    size: int
    rows: int

    @property
    def filename(self) -> str:
        return self.url.rpartition("/")[2]


HOME = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
"""The traces of 2023 (CC-BY; Splitwise, ISCA 2024) in the repository Azure/AzurePublicDataset."""

AZURE_2023 = (
    TraceFile(
        "azure-2023-code",
        f"{HOME}/AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        320_117,
        8_819,
    ),
    TraceFile(
        "azure-2023-conversation",
        f"{HOME}/AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        719_188,
        19_366,
    ),
)

REGISTRY = {file.name: file for file in AZURE_2023}


class MissingTraceError(InputError):
    """A published trace is in none of the places where it is searched for."""


class DownloadError(OSError):
    """A download failed: no network, no answer in time, or not the published file. One line, with the manual way."""


def find(name: str, path: str | Path | None = None) -> Path:
    """Find a published trace and check that it is the published file.

    Parameters
    ----------
    name : str
        A key of `REGISTRY`.
    path : str or Path, optional
        The file, or the folder that holds it; then nowhere else is searched.

    Returns
    -------
    Path
        The first that exists of ``path``, QBA_DATA_DIR and data/.

    Raises
    ------
    MissingTraceError
        If it is nowhere; the message names the places.
    InputError
        If the name is unknown, QBA_DATA_DIR is not a folder, or the file found has another hash.
    """
    if name not in REGISTRY:
        raise InputError(f"find: no published trace {name!r}; there are {', '.join(REGISTRY)}")
    file = REGISTRY[name]
    places = _places(path)
    for place in places:
        candidate = place / file.filename if place.is_dir() else place
        if candidate.is_file():
            return _verified(candidate, file)
    searched = ", ".join(str(place) for place in places)
    raise MissingTraceError(
        f"{name}: no {file.filename} in {searched}; get it with `qba fetch azure-2023`, "
        "or set QBA_DATA_DIR to the folder that holds it"
    )


def fetch_azure_2023(directory: str | Path | None = None, timeout: float = 30.0, progress: bool = True) -> list[Path]:
    """Download the code and conversation traces of 2023 (1 MB together); see `fetch`.

    Parameters
    ----------
    directory : str or Path, optional
        Where they go; default data/.
    """
    return fetch(AZURE_2023, data_dir() if directory is None else directory, timeout, progress)


def fetch(
    files: Sequence[TraceFile], directory: str | Path, timeout: float = 30.0, progress: bool = True
) -> list[Path]:
    """Download published files and check their hashes. Those already there are checked and kept.

    A file appears in the folder whole or not at all.

    Parameters
    ----------
    files : sequence of TraceFile
        What to download.
    directory : str or Path
        Where it goes; made if need be.
    timeout : float
        Seconds that each file may take from name resolution to its last byte.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    list of Path

    Raises
    ------
    DownloadError
        If a file cannot be had in time, or is not the published one.
    InputError
        If ``timeout`` is not above 0, the folder cannot be written, or a file already there has another hash.
    """
    timeout = number("fetch", "timeout", timeout, above=0)
    directory = Path(directory)
    paths = []
    for file in files:
        target = directory / file.filename
        if not target.exists():
            _download(file, target, timeout, progress)
        paths.append(_verified(target, file))
    return paths


def _places(path: str | Path | None) -> list[Path]:
    if path is not None:
        return [Path(path)]
    places = [data_dir()]
    chosen = os.environ.get("QBA_DATA_DIR")
    if chosen:
        folder = Path(chosen).expanduser()
        if not folder.is_dir():
            raise InputError(f"QBA_DATA_DIR = {chosen!r}, but it must name a folder that exists")
        places.insert(0, folder)
    return places


def _verified(path: Path, file: TraceFile) -> Path:
    try:
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if sha256 != file.sha256:
        raise InputError(
            f"{path}: sha256 is {sha256[:12]}..., but {file.name} as published has {file.sha256[:12]}...: "
            "the file is damaged or another one; remove it and fetch it again"
        )
    return path


def _download(file: TraceFile, target: Path, timeout: float, progress: bool) -> None:
    """Let pooch download into a scratch folder beside the target, and move what passed the hash check.

    The download runs in a thread that is left behind after ``timeout``: the limits that the HTTP client itself knows
    hold for each address and each piece of data anew, and for looking up the host's name not at all.
    """
    import pooch  # here, because it brings along a progress bar that warns in every notebook

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(f"{target.parent}: downloads cannot be put there ({error.strerror})") from None
    failures: list[Exception] = []
    shown = {"desc": file.filename, "total": file.size, "unit": "B", "unit_scale": True, "disable": not progress}
    with scratch as folder, tqdm(**shown) as bar:

        def retrieve() -> None:
            try:
                downloader = pooch.HTTPDownloader(progressbar=bar if progress else False, timeout=timeout)
                pooch.retrieve(file.url, f"sha256:{file.sha256}", file.filename, folder, downloader=downloader)
            except Exception as error:  # also what goes wrong once nobody waits any more
                failures.append(error)

        pooch.get_logger().setLevel("WARNING")  # the bar says it already
        worker = threading.Thread(target=retrieve, name=f"download {file.filename}", daemon=True)
        worker.start()
        worker.join(timeout)
        if worker.is_alive():
            bar.disable = True
            raise _failed(file, target, f"no complete answer within {timeout:g} s")
        if failures:
            raise _failed(file, target, _reason(failures[0]))
        os.replace(Path(folder) / file.filename, target)


def _reason(error: Exception) -> str:
    """What went wrong, in a few words: the client's own message nests three exceptions in one line."""
    response = getattr(error, "response", None)
    if response is not None:
        response.close()  # it was opened as a stream
        return f"the server answered {response.status_code} {response.reason}"
    if isinstance(error, OSError):  # the client's own errors have no number, a full disk has
        return error.strerror if error.errno else "no connection to the server (is there a network?)"
    if isinstance(error, ValueError):
        return "what came is not the published file (its SHA-256 differs)"
    raise error


def _failed(file: TraceFile, target: Path, reason: str) -> DownloadError:
    return DownloadError(
        f"{file.filename} cannot be downloaded: {reason}; "
        f"get {file.url} by other means and put it into {target.parent}, "
        "or set QBA_DATA_DIR to the folder that holds it"
    )
