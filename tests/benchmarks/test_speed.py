"""How long things take on this machine: `make bench`. Nothing here is a pass or fail of time; compare within one run.

The engine's cases serve the reference workload (32 requests/s, 3200 requests, some 28,700 batches); the plain-Python twin
serves the same, so the ratio of their rows is what compiling buys.
"""

from __future__ import annotations

import itertools

import naive
import pytest

import qba
from qba.engine.simulate import serve
from qba.metrics import summary_values
from qba.policies import BUILT_IN

CONFIG = qba.EngineConfig()
WORKLOADS = [qba.synthetic(seed=seed) for seed in range(8)]


@pytest.fixture
def workload():
    """The next workload at each call: a branch predictor must not learn one by heart."""
    return itertools.cycle(WORKLOADS).__next__


@pytest.mark.benchmark(group="one run of 3200 requests")
@pytest.mark.parametrize("policy", [cls() for cls in BUILT_IN], ids=lambda policy: policy.name)
def test_engine(benchmark, workload, policy):
    serve(workload(), policy, CONFIG)  # compiled before the clock starts
    result = benchmark(lambda: serve(workload(), policy, CONFIG))
    benchmark.extra_info["nanoseconds_per_batch"] = 1e9 * benchmark.stats.stats.median / result.totals["batches"]


@pytest.mark.benchmark(group="one run of 3200 requests")
def test_plain_python_twin(benchmark, workload):
    benchmark.pedantic(lambda: naive.simulate(workload(), qba.FCFS(), CONFIG), rounds=3, iterations=1)


@pytest.mark.benchmark(group="around the loop")
def test_drawing_the_workload(benchmark):
    seeds = itertools.count()
    benchmark(lambda: qba.synthetic(seed=next(seeds)))


@pytest.mark.benchmark(group="around the loop")
def test_summary(benchmark, workload):
    requests = workload()
    result = serve(requests, qba.QBA(), CONFIG)
    benchmark(lambda: summary_values(requests, qba.QBA(), CONFIG, result))


@pytest.mark.benchmark(group="around the loop")
def test_labelled_datasets(benchmark, workload):
    benchmark(lambda: qba.summarize(qba.simulate(workload(), qba.QBA(), CONFIG)))


@pytest.mark.benchmark(group="sweep of 400 runs")
def test_sweep(benchmark):
    policies = [cls() for cls in BUILT_IN]
    benchmark.pedantic(lambda: qba.sweep(policies, seeds=100, progress=False), rounds=3, iterations=1, warmup_rounds=1)
