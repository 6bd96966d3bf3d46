"""Run a notebook of the study by papermill, with the checks that papermill leaves out.

papermill only warns of an unknown parameter, keeps clock times and paths in what it writes, and cannot know which
files a notebook should have made. Here a mistake is refused before a kernel starts, a rerun gives the same bytes,
and a run that did not make what it promised is an error.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import os
import signal
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import papermill
from jupyter_client.manager import AsyncKernelManager
from papermill.exceptions import PapermillExecutionError

from qba.errors import InputError
from qba.paths import notebooks_dir, results_dir
from qba.results import atomic_write

KERNEL = "python3"
FAILED = ".failed.ipynb"
# The kernel's log goes to the terminal: warnings of the local transport, now and then the interrupt that ends it. What
# happens in a cell is reported without it. The user's own IPython history is left alone.
KERNEL_OPTIONS = ["--IPKernelApp.log_level=CRITICAL", "--HistoryManager.enabled=False"]


class Kernels(AsyncKernelManager):
    """Kernels that `stop_kernels` finds: a kernel has its own session, which an interrupt at the terminal does not reach."""

    started: weakref.WeakSet[Kernels] = weakref.WeakSet()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.started.add(self)


def stop_kernels() -> None:
    """Kill the kernels that run in other threads, so that these end."""
    for kernel in list(Kernels.started):
        process = getattr(kernel.provisioner, "process", None)  # None once it has ended
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)


class NotebookError(RuntimeError):
    """A notebook failed, or did not make what it promised: one line that names the notebook and the cell or file."""


def run_notebook(
    name: str | int | Path,
    output: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    promised: Sequence[str | Path] | None = None,
    timeout: float | None = None,
    progress: bool = True,
) -> Path:
    """Execute a notebook with the given parameters and write the executed copy.

    name: a notebook of the study ("01_load_sweep", "load_sweep", 1) or a path.
    output: where the executed copy goes; it is written whole at the end, free of times and paths.
    parameters: values for the notebook's parameters cell; the others keep their defaults.
    promised: files that the run must write, relative ones being in the results folder.
    timeout: seconds allowed for one cell (default: no limit).

    Raises InputError for an unknown notebook or parameter, for a value of another type than the default, and where a
    cell itself raises InputError; NotebookError where a cell fails otherwise or a promised file was not written. The
    notebook as far as it went, traceback included, is then kept beside the output as *.failed.ipynb.
    """
    source, output = find_notebook(name), Path(output)
    if output.is_dir():
        raise InputError(f"{output}: is a directory; a file name is needed")
    if output.exists() and output.samefile(source):
        raise InputError(f"{output}: is the notebook itself, which would be overwritten; name another output")
    values = check_parameters(source, parameters or {})
    files = [results_dir() / file for file in promised or ()]
    before = {file: _state(file) for file in files}
    notebook = _execute(source, output, values, timeout=timeout, progress=progress)
    missing = [file for file in files if _state(file) in (None, before[file])]
    if missing:
        raise NotebookError(f"{source.name}: ran, but did not write {', '.join(map(str, missing))}")
    return atomic_write(output, notebook)


def execute_in_place(names: Iterable[str | int | Path] | None = None) -> list[Path]:
    """Execute notebooks at their own defaults, each in its folder as nbval does, and write them back cleaned.

    names: as in `run_notebook`; default: all of the study. Returns their paths. A notebook that fails stays as it was.
    """
    paths = [find_notebook(name) for name in names] if names is not None else study_notebooks()
    for path in paths:
        atomic_write(path, _execute(path, path, {}, cwd=path.parent))
    return paths


def study_notebooks() -> list[Path]:
    """The study's notebooks in their order."""
    return sorted(path for path in notebooks_dir().glob("[0-9]*.ipynb") if not path.name.endswith(FAILED))


def find_notebook(name: str | int | Path) -> Path:
    """The path of a notebook given by name, number or path. Raises InputError, listing those there are."""
    known = {path.stem: path for path in study_notebooks()}
    given = str(name).removesuffix(".ipynb")
    for stem, path in known.items():
        number, _, title = stem.partition("_")
        if given in (stem, title) or (given.isdigit() and int(given) == int(number)):
            return path
    path = Path(name) if not isinstance(name, int) else Path(given)
    if path.suffix == ".ipynb" and path.is_file():
        return path
    raise InputError(f"no notebook {given!r}{_nearest(given, known)}; there are {', '.join(known) or 'none'}")


def check_parameters(path: str | Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the notebook takes them. Raises InputError for a name or a type that its cell does not have."""
    path = Path(path)
    try:
        known = papermill.inspect_notebook(path)
    except Exception as error:  # each kind of broken file has its own: not JSON, no cells, no kernel's name …
        raise InputError(f"{path}: cannot be read as a notebook ({str(error).splitlines()[0]})") from error
    checked = {}
    for name, value in parameters.items():
        if name not in known:
            there = ", ".join(f"{parameter} = {info['default']}" for parameter, info in known.items())
            raise InputError(f"{path.name}: no parameter {name!r}{_nearest(name, known)}; it has {there or 'none'}")
        try:
            default = ast.literal_eval(known[name]["default"])
        except (ValueError, SyntaxError):  # not a literal: a notebook of the user's own, whose cell says what it takes
            default = None
        checked[name] = _as_type_of(default, value, f"{path.name}: parameter {name}")
    return checked


def clean(notebook: nbformat.NotebookNode) -> str:
    """The notebook as text, without what differs from run to run: times, versions, paths, random cell ids."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": KERNEL},
            "language_info": {"name": "python"},
        }
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number}"
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
        if cell.cell_type == "code":
            cell.outputs = _joined_streams(cell.outputs)
    return nbformat.writes(notebook) + "\n"


def _execute(
    source: Path, output: Path, parameters: dict[str, Any], *, cwd: Path | None = None, timeout: float | None = None,
    progress: bool = True,
) -> str:  # fmt: skip
    """Run `source` and return the cleaned text; where it fails, leave it beside `output` as *.failed.ipynb."""
    failed = output.with_suffix(FAILED)
    # papermill saves after every cell, so that a run that dies leaves its last state.
    atomic_write(failed, "")
    try:
        notebook = papermill.execute_notebook(
            source, failed, parameters, cwd=cwd, kernel_name=KERNEL, execution_timeout=timeout,
            extra_arguments=KERNEL_OPTIONS, progress_bar={"desc": source.stem} if progress else False,
            kernel_manager_class=Kernels, shutdown_kernel="immediate",  # all that a cell wrote is whole
        )  # fmt: skip
    except PapermillExecutionError as error:
        reason = f"{error.ename}: {error.evalue}".splitlines()[0]
        if error.ename == "InputError":  # the line says it all
            failed.unlink()
            raise InputError(f"{source.name}: cell {error.exec_count}: {error.evalue}") from error
        raise NotebookError(
            f"{source.name}: cell {error.exec_count} failed with {reason} (all of it in {failed})"
        ) from error
    except Exception as error:  # the kernel died, did not start, or a cell took longer than allowed
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise NotebookError(f"{source.name}: {reason} (as far as it went in {failed})") from error
    failed.unlink()
    return clean(notebook)


def _as_type_of(default: Any, value: Any, what: str) -> Any:
    """`value`, widened where no meaning changes (3 → 3.0, tuple → list, path → text), if it has the default's type."""
    if default is None:
        return value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if type(value) is not type(default):
        raise InputError(f"{what} is {value!r} ({type(value).__name__}); {type(default).__name__} is needed")
    if isinstance(default, list) and default:
        return [_as_type_of(default[0], item, f"{what}[{i}]") for i, item in enumerate(value)]
    return value


def _joined_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Neighbouring pieces of one stream as one, since where a kernel cuts them depends on the clock."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _state(file: Path) -> tuple[int, int] | None:
    """What changes when a file is written again, even with the same content; None where there is no file."""
    if not file.is_file():
        return None
    status = file.stat()
    return status.st_ino, status.st_mtime_ns


def _nearest(name: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


if __name__ == "__main__":
    try:
        execute_in_place(sys.argv[1:] or None)
    except (InputError, NotebookError) as error:
        sys.exit(str(error))
