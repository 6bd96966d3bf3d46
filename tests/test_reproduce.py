"""The account around the notebooks: what is kept, written and said. The notebooks themselves run under nbval."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from qba import claims, paths, reproduce, results
from qba.errors import InputError
from qba.traces import DownloadError

PUBLISHED = paths.repository() / "results"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty results folder, no real traces, no network, and notebooks that copy what is published."""

    def no_network(**_):
        raise DownloadError("no network here")

    def copied(name, output, parameters, *, promised, progress):
        for file in promised:
            shutil.copy(PUBLISHED / file, tmp_path / file)
        Path(output).parent.mkdir(exist_ok=True)
        Path(output).write_text("executed")

    monkeypatch.setenv("QBA_RESULTS_DIR", str(tmp_path))
    monkeypatch.setenv("QBA_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(reproduce, "fetch_azure_2023", no_network)
    monkeypatch.setattr(reproduce.azure, "azure_2023_study", missing)
    monkeypatch.setattr(reproduce.labels, "published_studies", missing)
    monkeypatch.setattr(reproduce, "run_notebook", copied)
    return tmp_path


def missing(**_):
    raise reproduce.MissingTraceError("not here")


def test_the_whole_account(folder):
    said = []
    rows = reproduce.reproduce(seeds=100, say=said.append)
    assert rows == claims.read_scorecard(folder) == claims.read_scorecard(PUBLISHED)
    made = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    published = {path.relative_to(PUBLISHED).as_posix() for path in PUBLISHED.rglob("*") if path.is_file()}
    # `make bench` writes the benchmarks.
    assert made == {name for name in published if not name.startswith("small/")} - {"benchmarks.json"}
    for name in made:
        if not name.startswith("notebooks/"):
            assert (folder / name).read_bytes() == (PUBLISHED / name).read_bytes(), name
    text = "\n".join(said)
    assert "azure_2023.nc kept as published: no network here" in text
    assert "azure_labels.nc, azure_dependence.nc, azure_excerpt.nc kept as published: not here" in text
    assert all(row["id"] in text for row in rows) and "merged, long by total tokens" in text and "done in" in said[-1]


def test_the_readme_of_the_repository_is_left_alone_by_another_folder(folder):
    before = (paths.repository() / "README.md").read_bytes()
    reproduce.reproduce(seeds=100, say=lambda line: None)
    assert (paths.repository() / "README.md").read_bytes() == before


def test_a_kept_dataset_of_other_code_is_pointed_out(folder, monkeypatch):
    monkeypatch.setattr(results, "code_hash", lambda: "0" * 64)
    said = reproduce.replay_2023(folder)
    assert "made by other code" in said[-1]


def test_a_damaged_kept_dataset_is_refused(folder):
    (folder / "azure_2023.nc").write_bytes(b"not netCDF")
    with pytest.raises(InputError, match="azure_2023.nc"):
        reproduce.replay_2023(folder)


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(folder, monkeypatch):
    monkeypatch.setenv("QBA_RESULTS_DIR", "/proc/none")
    with pytest.raises(InputError, match="cannot be written"):
        reproduce.reproduce(say=lambda line: None)


def test_a_readme_without_the_marks_is_refused():
    with pytest.raises(InputError, match="scorecard: begin"):
        claims.insert_table("# title", claims.read_scorecard(PUBLISHED))
    with pytest.raises(InputError, match="scorecard: end"):
        claims.insert_table(f"# title\n{claims.TABLE_BEGIN}", claims.read_scorecard(PUBLISHED))


def test_what_goes_beyond_the_paper_runs_by_itself(folder):
    reproduce.reproduce(seeds=100, say=lambda line: None)
    for name in ("calibration", "robustness", "lab"):
        (folder / f"{name}.nc").unlink()
    said = []
    reproduce.beyond_the_paper(said.append)
    assert [line.split()[0] for line in said] == [
        "06_calibration", "07_robustness", "08_your_trace", "09_policy_lab", "done;",
    ]  # fmt: skip
    for name in ("calibration.nc", "robustness.nc", "lab.nc", "report.html", "figures/robustness.svg"):
        assert (folder / name).read_bytes() == (PUBLISHED / name).read_bytes(), name


def test_a_results_folder_begins_with_what_is_published(folder):
    kept = reproduce.keep(folder, "robustness.nc")
    assert kept.read_bytes() == (PUBLISHED / "robustness.nc").read_bytes()
    with pytest.raises(InputError, match="no such file"):
        reproduce.keep(folder, "nothing.nc")


def test_jobs_wait_for_those_before_them_and_tell_as_they_end():
    order, said = [], []

    def job(name):
        order.append(name)
        return [name]

    with reproduce.Jobs(said.append) as jobs:
        slow = jobs.submit(lambda: time.sleep(0.2) or job("slow"))
        jobs.submit(job, "last", after=[slow])
    assert order == said == ["slow", "last"]


def test_an_error_in_a_job_stops_the_others():
    ran = []
    with pytest.raises(InputError, match="this one"):
        with reproduce.Jobs(lambda line: None) as jobs:
            jobs.submit(failing)
            for _ in range(50):
                jobs.submit(lambda: time.sleep(0.1) or ran.append(1) or [])
    assert len(ran) < 50


def failing():
    raise InputError("this one")


def test_an_interrupt_stops_the_kernels_of_notebooks_in_other_threads(tmp_path):
    notebook, kernel = tmp_path / "endless.ipynb", {"name": "python3", "display_name": "Python 3"}
    cells = [nbformat.v4.new_code_cell("import time\nopen('begun', 'w').close()\ntime.sleep(600)")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), notebook)
    code = f"""
import os, signal, threading, time
from qba import notebooks, reproduce
def interrupt():
    while not os.path.exists("begun"):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
with reproduce.Jobs(print) as jobs:
    jobs.submit(notebooks.run_notebook, {str(notebook)!r}, "out.ipynb")
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "KeyboardInterrupt" in ended.stderr.splitlines()[-1], ended.stderr
    assert (tmp_path / "begun").exists() and not (tmp_path / "out.ipynb").exists()
