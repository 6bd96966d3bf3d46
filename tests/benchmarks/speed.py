"""What `make bench` measures: ours beside what a user would pick instead, cost against size, memory, and the whole study.

Ratios of one run on one machine are what counts. Processor time of one thread, medians of interleaved rounds, workloads
rotated so that no branch predictor learns one by heart.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import naive  # noqa: E402
import own  # noqa: E402
import simpy_model  # noqa: E402

import qba  # noqa: E402
from qba import results, sweeps  # noqa: E402
from qba.engine.simulate import serve  # noqa: E402
from qba.metrics import summary_values  # noqa: E402
from qba.paths import repository  # noqa: E402

CONFIG = qba.EngineConfig()
REQUESTS, SEEDS = 2000, 16
POLICIES = (qba.FCFS(), qba.PSF(), qba.AA(), qba.QBA())
SIZES = (10**4, 10**5, 10**6, 10**7)
HEAVY_RATE = 40
MOST_PYTHON_ROUNDS = 3


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    names = ("numpy", "numba", "xarray", "simpy")
    versions = {name: results.version(name) for name in names}
    return {
        "processor": model or platform.processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        **versions,
    }


def c_loop(folder: Path) -> Callable[[qba.Requests], tuple[np.ndarray, np.ndarray, int]]:
    """The loop of ``fcfs.c``, compiled into a folder."""
    library = folder / "fcfs.so"
    source = Path(__file__).with_name("fcfs.c")
    flags = ["-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(source)], check=True)
    function = ctypes.CDLL(str(library)).fcfs
    function.restype = ctypes.c_int64
    engine = [ctypes.c_int64(CONFIG.token_budget), ctypes.c_int64(CONFIG.decode_block)]
    engine += map(
        ctypes.c_double, (CONFIG.kv_safe_tokens, CONFIG.batch_overhead_s, CONFIG.token_time_s, CONFIG.knee_tokens)
    )

    def run(requests: qba.Requests) -> tuple[np.ndarray, np.ndarray, int]:
        n = len(requests)
        start, finish, decoding = np.empty(n), np.empty(n), np.empty((int(CONFIG.kv_safe_tokens) + 1, 2), np.int64)
        columns = (requests.arrival_s, requests.prompt_tokens, requests.response_tokens, start, finish, decoding)
        batches = function(ctypes.c_int64(n), *(column.ctypes.data_as(ctypes.c_void_p) for column in columns), *engine)
        return start, finish, batches

    return run


def seconds(call: Callable[[], Any]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def implementations(rounds: int) -> list[dict[str, Any]]:
    """Serving the reference workload: ours, C, SimPy, and the plain-Python twin, which all agree to the last bit."""
    workloads = [qba.synthetic(32, seed, requests=REQUESTS) for seed in range(SEEDS)]
    batches = statistics.mean(serve(one, POLICIES[0], CONFIG).totals["batches"] for one in workloads)
    with tempfile.TemporaryDirectory() as folder:
        try:
            in_c = c_loop(Path(folder))
        except (OSError, subprocess.CalledProcessError):
            in_c = None
        ours = serve(workloads[0], POLICIES[0], CONFIG)
        others = [simpy_model.simulate(workloads[0], CONFIG)] + ([in_c(workloads[0])] if in_c else [])
        for start, finish, count in others:
            assert np.array_equal(start, ours.start_s) and np.array_equal(finish, ours.finish_s)
            assert count == ours.totals["batches"]
        calls: dict[str, tuple[Callable, int]] = {
            f"qba, {policy.name}": (lambda one, p=policy: serve(one, p, CONFIG), rounds) for policy in POLICIES
        }
        if in_c:
            calls["C, FCFS (gcc -O3 -march=native)"] = (in_c, rounds)
        calls["SimPy, FCFS"] = (lambda one: simpy_model.simulate(one, CONFIG), MOST_PYTHON_ROUNDS)
        calls["plain Python (the tests' twin), FCFS"] = (
            lambda one: naive.simulate(one, POLICIES[0], CONFIG), MOST_PYTHON_ROUNDS,
        )  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in calls}
        for call, _ in calls.values():
            call(workloads[0])
        for i in range(rounds):
            for name, (call, most) in calls.items():
                if i < most:
                    times[name].append(seconds(lambda: call(workloads[i % SEEDS])))
    base = statistics.median(times["qba, FCFS"])
    return [
        {
            "implementation": name, "milliseconds": 1e3 * middle, "iterations_per_s": batches / middle,
            "requests_per_s": REQUESTS / middle, "times_fcfs": middle / base,
        }
        for name, measured in times.items()
        for middle in [statistics.median(measured)]
    ]  # fmt: skip


def around(rounds: int) -> list[dict[str, Any]]:
    """What surrounds one run of the loop in a sweep."""
    workload, policy = qba.synthetic(32, 0, requests=REQUESTS), POLICIES[3]
    result = serve(workload, policy, CONFIG)
    values = np.zeros((1, 1, len(sweeps.SUMMARY)))
    parts = {
        "the loop (QBA)": lambda i: serve(workload, policy, CONFIG),
        "draw and label the requests": lambda i: qba.synthetic(32, i, requests=REQUESTS),
        "summary": lambda i: summary_values(workload, policy, CONFIG, result),
    }
    found = [
        {"part": name, "microseconds": 1e6 * statistics.median(seconds(lambda i=i: part(i)) for i in range(rounds))}
        for name, part in parts.items()
    ]
    with tempfile.TemporaryDirectory() as folder:  # a piece of a sweep holds some hundred runs
        store = sweeps.Store(folder, {})
        piece = np.repeat(values, 100, axis=1)
        saved = statistics.median(seconds(lambda i=i: store.save(i, piece)) for i in range(20)) / 100
    return [*found, {"part": "saving, a hundredth of a piece", "microseconds": 1e6 * saved}]


def own_policies(rounds: int) -> list[dict[str, Any]]:
    """Policies written with `qba.policy` against the same ones built in, on the reference workload."""
    workloads = [qba.synthetic(32, seed, requests=REQUESTS) for seed in range(SEEDS)]
    times: dict[Any, list[float]] = {policy: [] for pair in own.PAIRS for policy in pair}
    for mine, theirs in own.PAIRS:
        assert np.array_equal(serve(workloads[0], mine, CONFIG).start_s, serve(workloads[0], theirs, CONFIG).start_s)
    for i in range(rounds):
        for policy, measured in times.items():
            measured.append(seconds(lambda: serve(workloads[i % SEEDS], policy, CONFIG)))
    middle = {policy: statistics.median(measured) for policy, measured in times.items()}
    return [
        {
            "policy": mine.name, "milliseconds": 1e3 * middle[mine], "built_in": theirs.name,
            "its_milliseconds": 1e3 * middle[theirs], "ratio": middle[mine] / middle[theirs],
        }
        for mine, theirs in own.PAIRS
    ]  # fmt: skip


def one_size(name: str, rate: float, size: int) -> dict[str, float]:
    """Nanoseconds per request of one run in this process, and its largest memory in MiB."""
    policy = next(p for p in POLICIES if p.name == name)
    serve(qba.synthetic(rate, 1, requests=1000), policy, CONFIG)
    workload = qba.synthetic(rate, 0, requests=size)
    repeats = max(1, min(20, 200_000 // size))
    best = statistics.median(seconds(lambda: serve(workload, policy, CONFIG)) for _ in range(repeats))
    return {
        "policy": name, "rate": rate, "requests": size, "nanoseconds_per_request": 1e9 * best / size,
        "process_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def scaling(sizes: tuple[int, ...]) -> list[dict[str, float]]:
    """`one_size` for each policy, load and size, each in a process of its own, so that memory is its own."""
    found = []
    for policy in POLICIES:
        for rate in (28, HEAVY_RATE):
            for size in sizes:
                arguments = [sys.executable, __file__, "--one-size", policy.name, str(rate), str(size)]
                output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
                found.append(json.loads(output))
    return found


def processes(seeds: int) -> dict[str, float]:
    """Wall time of one sweep with one and with two worker processes, each warmed up."""
    wall = {}
    for workers in (1, 2):
        with ProcessPoolExecutor(workers) as pool:
            qba.sweep(POLICIES, [28, 32], 40, progress=False, executor=pool)
            started = time.monotonic()
            qba.sweep(POLICIES, [28, 32], seeds, progress=False, executor=pool)
            wall[f"{workers} worker processes, s"] = time.monotonic() - started
    one, two = wall.values()
    return {"runs": 8 * seeds, **wall, "ratio": one / two}


def first_answer() -> dict[str, float]:
    """Wall time of a fresh process that imports the package and simulates once, compiled before."""
    code = "import qba; qba.simulate(qba.synthetic(32, 0), qba.QBA())"
    times = []
    for _ in range(4):
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.monotonic() - started)
    return {"seconds": statistics.median(times[1:])}


def reproduction() -> dict[str, float]:
    """Wall time of the whole study into a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        subprocess.run([sys.executable, "-m", "qba", "reproduce", "--results", folder], check=True, capture_output=True)
        return {"seconds": time.monotonic() - started}


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as text columns."""
    names = list(rows[0])
    cells = [names, *([_text(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))) for line in cells
    )


def _text(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else f"{value:,.0f}"
        if abs(value) >= 1000 or value == int(value)
        else f"{value:.3g}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, without the whole study; nothing is saved")
    parser.add_argument("--one-size", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_size:
        name, rate, size = options.one_size
        print(json.dumps(one_size(name, float(rate), int(size))))
        return
    rounds = 20 if options.quick else 200
    report: dict[str, Any] = {"machine": machine()}
    print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    steps = {
        "implementations": (f"{REQUESTS:,} requests at 32 requests/s", lambda: implementations(rounds)),
        "own_policies": ("policies of one's own, against the same built in", lambda: own_policies(rounds)),
        "around": ("around one run", lambda: around(rounds)),
        "scaling": ("cost against size", lambda: scaling(SIZES[:2] if options.quick else SIZES)),
        "processes": ("one sweep, one and two processes", lambda: processes(50 if options.quick else 1000)),
        "first_answer": ("a fresh process", first_answer),
    }
    if not options.quick:
        steps["reproduction"] = ("make reproduce", reproduction)
    for name, (heading, measure) in steps.items():
        report[name] = measure()
        print(f"\n{heading}\n{table(report[name] if isinstance(report[name], list) else [report[name]])}", flush=True)
    if not options.quick:
        path = results.atomic_write(repository() / "results" / "benchmarks.json", json.dumps(report, indent=1) + "\n")
        print(f"\nsaved {path.relative_to(repository())}")


if __name__ == "__main__":
    main()
