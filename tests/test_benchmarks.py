"""What `make bench` compares the engine with serves the same requests at the same times."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qba
from qba.engine.simulate import serve

FOLDER = Path(__file__).parent / "benchmarks"
WORKLOADS = [qba.synthetic(rate, seed, requests=300) for seed, rate in enumerate((5, 26, 32, 60))]


@pytest.fixture(scope="module")
def speed():
    pytest.importorskip("simpy", reason="SimPy is not installed: pip install qba[bench]")
    sys.path.insert(0, str(FOLDER))
    try:
        import speed
    finally:
        sys.path.remove(str(FOLDER))
    return speed


def the_same(requests: qba.Requests, start, finish, batches: int) -> None:
    ours = serve(requests, qba.FCFS(), qba.EngineConfig())
    np.testing.assert_array_equal(start, ours.start_s)
    np.testing.assert_array_equal(finish, ours.finish_s)
    assert batches == ours.totals["batches"]


@pytest.mark.parametrize("requests", WORKLOADS)
def test_the_simpy_model_agrees_to_the_last_bit(speed, requests):
    the_same(requests, *speed.simpy_model.simulate(requests, qba.EngineConfig()))


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to compile the loop in C with")
def test_the_loop_in_c_agrees_to_the_last_bit(speed, tmp_path: Path):
    run = speed.c_loop(tmp_path)
    for requests in WORKLOADS:
        the_same(requests, *run(requests))


def test_one_measurement_can_be_made():
    arguments = [sys.executable, str(FOLDER / "speed.py"), "--one-size", "QBA", "40", "500"]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    assert '"requests": 500' in output and "nanoseconds_per_request" in output
