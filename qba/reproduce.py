"""The whole study: every notebook at the paper's size, then scorecard, figures and report, into the results folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr

from qba import azure, claims, figures, labels, report
from qba.calibrate import FAMILIES
from qba.errors import InputError
from qba.notebooks import run_notebook
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
            "simulated_s": 20_000,
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
}
"""Every notebook of the study, in order. 05 only shows what those before it and the steps between have written."""


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
    studies = {name: study for name, study in STUDIES.items() if not study.beyond}
    say(f"reproducing the paper into {_shown(folder)}: {seeds} seeds a point, {len(studies)} notebooks")
    replay_2023(folder, say)
    compare_labels(folder, say)
    for name, study in STUDIES.items():
        if study.beyond:
            for file in (*study.promises, f"notebooks/{name}.ipynb"):
                keep(folder, file)
            say(f"  {name:<22} kept as published (make beyond runs it)")
            continue
        if name == "05_scorecard":
            rows = write_accounts(folder)
        _run(folder, name, study.parameters | ({"seeds": seeds} if study.takes_seeds else {}), say)
    started = time.monotonic()
    drawn = figures.draw_all(folder)
    page = report.write_report(folder)
    say(f"  {len(drawn)} figures and {page.name:<10} {time.monotonic() - started:5.1f} s")
    say("")
    say_results(folder, rows, say)
    say(f"done in {time.monotonic() - began:.0f} s; open {_shown(page)}")
    return rows


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
            _run(folder, name, study.parameters, say)
    figures.draw_all(folder)
    say(f"done; open {_shown(report.write_report(folder))}")


def _run(folder: Path, name: str, parameters: dict[str, Any], say: Callable[[str], None]) -> None:
    started = time.monotonic()
    promises = STUDIES[name].promises
    output = folder / "notebooks" / f"{name}.ipynb"
    run_notebook(name, output, parameters, promised=promises, progress=sys.stderr.isatty())
    say(f"  {name:<22} {time.monotonic() - started:5.1f} s   {', '.join(promises) or 'shown only'}")


def keep(folder: Path, file: str) -> Path:
    """See to it that a published file lies in a results folder: another folder begins with the repository's."""
    target = folder / file
    if not target.exists():
        published = repository() / "results" / file
        if not published.exists():
            raise InputError(f"{published}: no such file; make reproduce writes the results")
        atomic_write(target, published.read_bytes())
    return target


def replay_2023(folder: Path, say: Callable[[str], None] = print) -> None:
    """Replay the public traces of 2023, downloading them where they are not at hand; else keep the published dataset."""

    def study() -> dict[str, xr.Dataset]:
        kept = [*KEEPS["azure_standin"], "dropped_requests"]
        try:
            return {"azure_2023": azure.azure_2023_study(progress=False)[kept]}
        except MissingTraceError:
            fetch_azure_2023(timeout=FETCH_TIMEOUT_S, progress=sys.stderr.isatty())
            return {"azure_2023": azure.azure_2023_study(progress=False)[kept]}

    make_or_keep(folder, ("azure_2023",), study, azure.SOURCES_2023, say)


def compare_labels(folder: Path, say: Callable[[str], None] = print) -> None:
    """The studies of labels, which need the traces of 2023 and the excerpt of 2024; else keep the published datasets."""
    make_or_keep(folder, labels.PUBLISHED, lambda: labels.published_studies(), labels.SOURCES, say)


def make_or_keep(
    folder: Path,
    names: Sequence[str],
    make: Callable[[], dict[str, xr.Dataset]],
    sources: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Save what ``make`` returns; where its data are not at hand, keep what is in the folder or else what is published."""
    files = ", ".join(f"{name}.nc" for name in names)
    try:
        studies = make()
    except (DownloadError, MissingTraceError) as problem:
        for name in names:
            load(keep(folder, f"{name}.nc"))  # raises where it is damaged
        say(f"  {files} kept as published: {problem}")
        if any(stale(folder / f"{name}.nc") for name in names):
            say("  but made by other code than the present: replay the real traces to renew them")
        return
    for name, study in studies.items():
        save(study, folder / f"{name}.nc", parameters={"windows": azure.WINDOWS}, sources=sources)
    say(f"  {files} made from the real traces")


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
