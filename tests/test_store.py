"""Sweeps that are interrupted, killed and gone on with; and executors of several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import qba
from qba import sweeps
from qba.errors import InputError
from qba.results import load
from qba.store import MANIFEST, Store

SMALL = {"policies": [qba.PSF(), qba.QBA()], "rate": [28, 33], "seeds": 4, "horizon_s": [20], "progress": False}


@pytest.fixture
def many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "LEAST_RUNS", 2)
    monkeypatch.setattr(sweeps, "MOST_RUNS", 2)


@pytest.mark.usefixtures("many_pieces")
def test_a_store_changes_no_result_and_is_not_computed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    without, first = qba.sweep(**SMALL), qba.sweep(**SMALL, store=tmp_path / "kept")
    pieces = sorted((tmp_path / "kept").glob("piece_*.nc"))
    assert len(pieces) == 8
    monkeypatch.setattr(sweeps, "serve_cases", None)  # nothing is left to be called
    again = qba.sweep(**SMALL, store=tmp_path / "kept")
    for table in (first, again):
        xr.testing.assert_identical(without, table)


def test_a_store_of_another_definition_under_the_same_name_is_refused(tmp_path: Path):
    def shortest(sign: int):
        class Mine:
            weight: float = 1.0

        exec(f"def key(self, request): return {sign} * request.prompt_tokens", space := {})
        Mine.key = space["key"]
        return qba.policy(Mine)

    few = {"rate": 28, "seeds": 1, "horizon_s": [5], "progress": False, "store": tmp_path}
    qba.sweep([shortest(1)()], **few)
    qba.sweep([shortest(1)()], **few)
    with pytest.raises(InputError, match="belongs to another computation: cases differ"):
        qba.sweep([shortest(-1)()], **few)


@pytest.mark.usefixtures("many_pieces")
def test_lost_and_damaged_pieces_are_computed_anew(tmp_path: Path):
    whole = qba.sweep(**SMALL, store=tmp_path)
    pieces = sorted(tmp_path.glob("piece_*.nc"))
    kept = pieces[0].read_bytes()
    pieces[1].unlink()
    pieces[2].write_bytes(b"")
    pieces[3].write_bytes(kept[:100])
    xr.testing.assert_identical(qba.sweep(**SMALL, store=tmp_path), whole)
    assert all(load(piece) is not None for piece in pieces)


def test_a_store_of_anything_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    qba.sweep(**SMALL, store=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    others = {"seeds": 5, "rate": [28, 34], "horizon_s": [20.5], "policies": [qba.PSF(), qba.QBA(quota=4)]}
    for name, value in others.items():
        with pytest.raises(InputError, match="belongs to another computation: (cases|seeds) differ"):
            qba.sweep(**{**SMALL, name: value}, store=tmp_path)
    with pytest.raises(InputError, match="cases differ"):
        qba.sweep(**SMALL, config=qba.EngineConfig(token_budget=129), store=tmp_path)
    monkeypatch.setattr("qba.store.code_hash", lambda: "0" * 64)
    with pytest.raises(InputError, match="code differ .*delete this one to begin anew"):
        qba.sweep(**SMALL, store=tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_lengths_that_differ_beyond_what_is_shown_are_told_apart(tmp_path: Path):
    laws = [qba.lengths.Exponential(300 + extra) for extra in (0, 1e-11)]
    assert repr(laws[0]) == repr(laws[1])
    qba.sweep(**SMALL, prompt=laws[:1], store=tmp_path)
    with pytest.raises(InputError, match="cases differ"):
        qba.sweep(**SMALL, prompt=laws[1:], store=tmp_path)


def test_a_folder_of_other_files_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="holds other files"):
        qba.sweep(**SMALL, store=tmp_path)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / MANIFEST).write_text("{")
    with pytest.raises(InputError, match=MANIFEST):
        Store(broken, {})


# --- interrupted and killed -------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import qba
from qba import sweeps
sweeps.LEAST_RUNS = sweeps.MOST_RUNS = 4
table = qba.sweep([qba.FCFS(), qba.QBA()], rate=[30, 34], seeds=400, progress=False, store=sys.argv[1] or None)
table.to_netcdf(sys.argv[2], engine="h5netcdf")
"""


def start(store: str | Path, output: Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(store), str(output)], stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def wait_for_pieces(store: Path, process: subprocess.Popen, count: int = 3) -> None:
    deadline = time.monotonic() + 120
    while len(list(store.glob("piece_*.nc"))) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.005)


def test_a_killed_sweep_goes_on_and_ends_as_an_undisturbed_one(tmp_path: Path):
    finish(start("", tmp_path / "undisturbed.nc"))
    store, output = tmp_path / "store", tmp_path / "resumed.nc"
    killed = start(store, output)
    wait_for_pieces(store, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL and not output.exists()
    finished = {path: path.stat().st_mtime_ns for path in store.glob("piece_*.nc")}
    assert 3 <= len(finished) < 400
    finish(start(store, output))
    assert finished.items() <= {path: path.stat().st_mtime_ns for path in store.glob("piece_*.nc")}.items()
    assert output.read_bytes() == (tmp_path / "undisturbed.nc").read_bytes()


def test_an_interrupt_says_what_is_kept(tmp_path: Path):
    store = tmp_path / "store"
    process = start(store, tmp_path / "never.nc")
    wait_for_pieces(store, process)
    while (
        process.poll() is None
    ):  # once is enough, unless it falls into one of Python's own callbacks, which swallow it
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.4)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert (
        "interrupted after " in errors
        and " of 1,600 runs: kept in " in errors
        and "the same call goes on there" in errors
    )


# --- several processes ------------------------------------------------------------------------------------------------


def test_processes_give_what_threads_give():
    with ProcessPoolExecutor(2) as pool:
        xr.testing.assert_identical(qba.sweep(**SMALL, executor=pool), qba.sweep(**SMALL))


def test_a_cluster_gives_what_threads_give_though_a_worker_is_killed(tmp_path: Path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install qba[cluster]")
    dask = pytest.importorskip("dask")
    settings = {"distributed.scheduler.allowed-failures": 10, "temporary-directory": str(tmp_path)}
    grid = {"policies": [qba.FCFS(), qba.QBA()], "rate": [30, 34], "seeds": 800, "progress": False}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        first = qba.sweep(**SMALL, executor=executor, store=tmp_path / "store")
        again = qba.sweep(**SMALL, executor=executor, store=tmp_path / "store")
        victim = client.submit(os.getpid, pure=False).result()
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(qba.sweep, **grid, executor=executor)
            time.sleep(0.5)
            os.kill(victim, signal.SIGKILL)
            second = running.result(timeout=240)
    for table in (first, again):
        xr.testing.assert_identical(table, qba.sweep(**SMALL))
    xr.testing.assert_identical(second, qba.sweep(**grid))


def test_the_cut_into_pieces_depends_on_the_grid_alone():
    assert [sweeps.runs_per_piece(runs) for runs in (1, 4000, 64_000, 10**6)] == [40, 62, 1000, 1500]
    assert np.isclose(sweeps.runs_per_piece(12_000), 187)
