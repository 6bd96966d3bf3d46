"""The whole study: every notebook at the paper's size, then scorecard, figures and report, into the results folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr
from tqdm import tqdm

from qba import azure, claims, figures, labels, report
from qba.calibrate import FAMILIES
from qba.errors import InputError
from qba.notebooks import run_notebook, stop_kernels
from qba.paths import repository, results_dir
from qba.results import KEEPS, atomic_write, load, save, stale
from qba.robustness import RATES, READINGS
from qba.tables import table2_text
from qba.traces import DownloadError, MissingTraceError, fetch_azure_2023

FETCH_TIMEOUT_S = 5.0
FULL_SEEDS = 100


@dataclass(frozen=True)
class Study:
    """One notebook at full size: its parameters besides ``seeds``, and the datasets it promises."""

    parameters: dict[str, Any] = field(default_factory=dict)
    promises: tuple[str, ...] = ()
    takes_seeds: bool = True
    beyond: bool = False
    """Whether it asks more than the paper does, and takes minutes: it then runs by itself (`beyond_the_paper`)."""


STUDIES: dict[str, Study] = {
    "00_setup": Study(takes_seeds=False),
    "01_load_sweep": Study(
        {
            "rates": list(RATES),
            "output": "load_sweep.nc",
            "model_output": "theory.nc",
            "error_output": "model_error.nc",
            "steps_output": "model_steps.nc",
            "step_seeds": 20,
            "step_horizon": 400.0,
        },
        ("load_sweep.nc", "theory.nc", "model_error.nc", "model_steps.nc"),
    ),
    "02_sensitivity": Study(
        {
            "output": "sensitivity.nc",
            "delay_output": "promotion_delay.nc",
            "loads": list(range(26, 37, 2)),
            "horizons": [12.5, 25, 50, 100, 200, 400, 800, 1600],
            "simulated_s": 12_000,
            "many_seeds": 1000,
            "horizon_output": "horizon.nc",
            "precision_output": "precision.nc",
        },
        ("sensitivity.nc", "promotion_delay.nc", "horizon.nc", "precision.nc"),
    ),
    "03_prediction_errors": Study({"output": "prediction_errors.nc"}, ("prediction_errors.nc",)),
    "04_azure_validation": Study({"windows": 100, "output": "azure_standin.nc"}, ("azure_standin.nc",), False),
    "05_scorecard": Study(takes_seeds=False),
    "06_calibration": Study(
        {
            "families": list(FAMILIES),
            "seeds": 200,
            "refining_seeds": 400,
            "fresh_seeds": 300,
            "points": 6,
            "output": "calibration.nc",
        },
        ("calibration.nc",),
        takes_seeds=False,
        beyond=True,
    ),
    "07_robustness": Study(
        {
            "readings": [reading.name for reading in READINGS],
            "seeds": FULL_SEEDS,
            "windows": 100,
            "refit_seeds": 60,
            "output": "robustness.nc",
        },
        ("robustness.nc",),
        takes_seeds=False,
        beyond=True,
    ),
    "08_your_trace": Study(takes_seeds=False, beyond=True),
    "09_policy_lab": Study(
        {
            "rates": [28, 30, 32],
            "seeds": FULL_SEEDS,
            "windows": 100,
            "quotas": [1, 2, 3, 4, 5, 6, 8, 12],
            "output": "lab.nc",
            "windows_output": "lab_windows.nc",
            "gate_output": "lab_gate.nc",
        },
        ("lab.nc", "lab_windows.nc", "lab_gate.nc"),
        takes_seeds=False,
        beyond=True,
    ),
}
"""Every notebook, in order. 05 only shows what those before it and the steps between have written."""


def reproduce(seeds: int = FULL_SEEDS, say: Callable[[str], None] = print) -> list[claims.Row]:
    """Run the study and write all of ``results/``.

    Parameters
    ----------
    seeds : int
        Replications of each synthetic operating point; the paper has 100.
    say : callable
        Takes each line of the account.

    Returns
    -------
    list of dict
        The scorecard's rows.

    Raises
    ------
    InputError
        If the results folder cannot be written, or a published dataset is neither there nor can be made.
    NotebookError
        If a notebook fails.
    """
    began = time.monotonic()
    folder = results_dir()
    atomic_write(folder / ".writable", "")  # better refused now than after minutes of work
    (folder / ".writable").unlink()
    ran = {name: study for name, study in STUDIES.items() if not study.beyond}
    say(f"reproducing the paper into {_shown(folder)}: {seeds} seeds a point, {len(ran)} notebooks")
    for name, study in STUDIES.items():
        if study.beyond:
            for file in (*study.promises, f"notebooks/{name}.ipynb"):
                keep(folder, file)
            say(f"  {name:<22} kept as published (make beyond runs it)")

    def notebook(name: str) -> list[str]:
        study = STUDIES[name]
        return _run(folder, name, study.parameters | ({"seeds": seeds} if study.takes_seeds else {}))

    last = [name for name, figure in figures.FIGURES.items() if {"azure_standin", "scorecard"} & {*figure.datasets}]
    with Jobs(say) as jobs:  # the longest first, and what waits for others last
        sensitivity = jobs.submit(notebook, "02_sensitivity")
        traces = jobs.submit(lambda: replay_2023(folder) + compare_labels(folder))
        loads, errors = (jobs.submit(notebook, name) for name in ("01_load_sweep", "03_prediction_errors"))
        jobs.submit(notebook, "00_setup")
        jobs.submit(notebook, "04_azure_validation", after=[traces])
        first = [name for name in figures.FIGURES if name not in last]
        jobs.submit(_draw, folder, first, after=[sensitivity, traces, loads, errors])
    rows = write_accounts(folder)
    with Jobs(say) as jobs:
        jobs.submit(notebook, "05_scorecard")
        jobs.submit(lambda: _draw(folder, last) + _report(folder))
    say("")
    say_results(folder, rows, say)
    say(f"done in {time.monotonic() - began:.0f} s; open {_shown(folder / report.FILE)}")
    return rows


class Jobs:
    """Jobs that run as many at once as there are cores, in the order they were given; each returns lines for the account.

    An error in one, or an interrupt, stops the others, and is raised at the end of the ``with`` block.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.threads = ThreadPoolExecutor(os.cpu_count())
        self.futures: list[Future] = []

    def submit(self, job: Callable[..., list[str]], *arguments: Any, after: Sequence[Future] = ()) -> Future:
        """Run ``job(*arguments)`` once those of ``after`` have ended, which must have been given before."""

        def run() -> list[str]:
            for earlier in after:
                earlier.result()  # raises what went wrong there
            return job(*arguments)

        self.futures.append(self.threads.submit(run))
        return self.futures[-1]

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        try:
            if raised is None:
                self._tell()
        except BaseException:
            self._stop()
            raise
        else:
            if raised is not None:
                self._stop()
        finally:
            self.threads.shutdown()

    def _tell(self) -> None:
        """Say what each job returns as it ends."""
        with tqdm(total=len(self.futures), unit="part", leave=False, disable=not sys.stderr.isatty()) as bar:
            for future in as_completed(self.futures):
                lines = future.result()
                with bar.external_write_mode():
                    for line in lines:
                        self.say(line)
                bar.update()

    def _stop(self) -> None:
        """Cancel what has not begun, and end the notebooks that run."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in self.futures):  # also a kernel that is only just starting
            stop_kernels()
            wait(self.futures, timeout=0.2)


def beyond_the_paper(say: Callable[[str], None] = print) -> None:
    """Run the studies that ask more than the paper: which workload, and what hangs on a reading. Some thirty minutes.

    Parameters
    ----------
    say : callable
        Takes each line of the account.

    Raises
    ------
    InputError
        If the results folder cannot be written.
    NotebookError
        If a notebook fails.
    """
    folder = results_dir()
    for name, study in STUDIES.items():
        if study.beyond:
            say(*_run(folder, name, study.parameters, progress=sys.stderr.isatty()))
    figures.draw_all(folder)
    say(f"done; open {_shown(report.write_report(folder))}")


def _run(folder: Path, name: str, parameters: dict[str, Any], progress: bool = False) -> list[str]:
    started = time.monotonic()
    promises = STUDIES[name].promises
    output = folder / "notebooks" / f"{name}.ipynb"
    run_notebook(name, output, parameters, promised=promises, progress=progress)
    return [f"  {name:<22} {time.monotonic() - started:5.1f} s   {', '.join(promises) or 'shown only'}"]


def _draw(folder: Path, names: Sequence[str]) -> list[str]:
    started = time.monotonic()
    figures.draw_all(folder, names)
    return [f"  {f'{len(names)} figures':<22} {time.monotonic() - started:5.1f} s"]


def _report(folder: Path) -> list[str]:
    started = time.monotonic()
    page = report.write_report(folder)
    return [f"  {page.name:<22} {time.monotonic() - started:5.1f} s"]


def keep(folder: Path, file: str) -> Path:
    """See to it that a published file lies in a results folder: another folder begins with the repository's."""
    target = folder / file
    if not target.exists():
        published = repository() / "results" / file
        if not published.exists():
            raise InputError(f"{published}: no such file; make reproduce writes the results")
        atomic_write(target, published.read_bytes())
    return target


def replay_2023(folder: Path) -> list[str]:
    """Replay the public traces of 2023, downloading them where they are not at hand; else keep the published dataset.

    Returns lines for the account, as `compare_labels` and `make_or_keep` do.
    """

    def study() -> dict[str, xr.Dataset]:
        kept = [*KEEPS["azure_standin"], "dropped_requests"]
        try:
            return {"azure_2023": azure.azure_2023_study(progress=False)[kept]}
        except MissingTraceError:
            fetch_azure_2023(timeout=FETCH_TIMEOUT_S, progress=False)
            return {"azure_2023": azure.azure_2023_study(progress=False)[kept]}

    return make_or_keep(folder, ("azure_2023",), study, azure.SOURCES_2023)


def compare_labels(folder: Path) -> list[str]:
    """The studies of labels, which need the traces of 2023 and the excerpt of 2024; else keep the published datasets."""
    return make_or_keep(folder, labels.PUBLISHED, lambda: labels.published_studies(), labels.SOURCES)


def make_or_keep(
    folder: Path,
    names: Sequence[str],
    make: Callable[[], dict[str, xr.Dataset]],
    sources: Mapping[str, str],
) -> list[str]:
    """Save what ``make`` returns; where its data are not at hand, keep what is in the folder or else what is published."""
    began = time.monotonic()
    files = ", ".join(f"{name}.nc" for name in names)
    try:
        studies = make()
    except (DownloadError, MissingTraceError) as problem:
        for name in names:
            load(keep(folder, f"{name}.nc"))  # raises where it is damaged
        lines = [f"  {files} kept as published: {problem}"]
        if any(stale(folder / f"{name}.nc") for name in names):
            lines.append("  but made by other code than the present: replay the real traces to renew them")
        return lines
    for name, study in studies.items():
        save(study, folder / f"{name}.nc", parameters={"windows": azure.WINDOWS}, sources=sources)
    return [f"  {'real traces':<22} {time.monotonic() - began:5.1f} s   {files}"]


def write_accounts(folder: Path) -> list[claims.Row]:
    """The scorecard, as JSON in the results folder and, for the repository's own results, as the README's table."""
    rows = claims.write_scorecard(folder)
    readme = repository() / "README.md"
    if folder == repository() / "results" and readme.exists():
        text = readme.read_text(encoding="utf-8")
        updated = claims.insert_table(text, rows)
        if updated != text:
            atomic_write(readme, updated)
    return rows


def say_results(folder: Path, rows: list[claims.Row], say: Callable[[str], None]) -> None:
    """Print the scorecard and the two studies of Table II."""
    for row in rows:
        say(claims.line(row))
    say("")
    say("scorecard: " + ", ".join(f"{count} {status}" for status, count in claims.counts(rows).items()))
    say("")
    for name in ("azure_standin", "azure_2023"):
        say(table2_text(load(folder / f"{name}.nc")))
        say("")


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
