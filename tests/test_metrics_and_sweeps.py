"""Summaries and grids: right values, paired requests, independence of workers, messages."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
import xarray as xr
from scipy import stats

import qba
from qba import sweeps as sweep_module
from qba.lengths import Exponential, LogNormal, Uniform
from qba.metrics import SUMMARY, summarize
from qba.order_statistics import quantiles, rank_correlation, ranks
from qba.sweeps import replay, sweep
from qba.workload import PROMPT

ALL = [qba.FCFS(), qba.PSF(), qba.AA(), qba.QBA()]


def test_a_summary_holds_what_numpy_says():
    requests = qba.mislabel(qba.synthetic(30, 2), 0.1, 0.2, seed=2)
    run = qba.simulate(requests, qba.QBA())
    summary = summarize(run)
    assert list(summary) == list(SUMMARY)
    wait, long = run.wait_s.values, run.true_long.values
    expected = {
        "wait_mean_s": wait.mean(),
        "wait_p50_s": np.median(wait),
        "wait_p99_s": np.quantile(wait, 0.99),
        "wait_p99_true_short_s": np.quantile(wait[~long], 0.99),
        "wait_p50_true_long_s": np.median(wait[long]),
        "ttft_p99_s": np.quantile(run.first_token_s - run.arrival_s, 0.99),
        "latency_mean_s": (run.finish_s - run.arrival_s).values.mean(),
        "makespan_s": float(run.finish_s.max()) - requests.arrival_s[0],
        "throughput_tokens_per_s": run.tokens.item() / run.makespan_s.item(),
    }
    for name, value in expected.items():
        assert summary[name].item() == pytest.approx(value, rel=1e-12), name
    for name, variable in summary.items():
        assert variable.attrs["units"] and variable.attrs["long_name"], name


def test_a_class_without_requests_has_no_statistics():
    requests = qba.Requests(arrival_s=[0, 1], prompt_tokens=[5, 5], response_tokens=[5, 5])
    summary = summarize(qba.simulate(requests, qba.QBA()))
    assert np.isnan(summary.wait_p99_true_long_s) and np.isnan(summary.promoted_fraction)
    assert np.isfinite(summary.wait_p99_true_short_s)


def test_each_point_is_the_simulation_that_its_labels_name():
    laws = {repr(law): law for law in (LogNormal(200, cv=1), Uniform(462, cv=0.5))}
    axes = {"short_to_long": [0, 0.1], "quota": [2, 5], "kv_capacity": [8192, 16384], "response": list(laws)}
    table = sweep(
        ALL, rate=[20, 24], seeds=[3, 7], progress=False, horizon_s=[10], **axes | {"response": list(laws.values())}
    )
    assert table.wait_mean_s.dims == ("policy", "rate", "horizon_s", *axes, "seed")
    for at in itertools.product(["PSF", "QBA"], [20, 24], *axes.values(), [3, 7]):
        name, rate, error, quota, kv, law, seed = at
        requests = qba.synthetic(rate, seed, horizon_s=10, response=laws[law])
        requests = qba.mislabel(requests, short_to_long=error, seed=seed)
        policy = qba.QBA(quota=quota) if name == "QBA" else qba.PSF()
        expected = summarize(qba.simulate(requests, policy, qba.EngineConfig(kv_capacity=kv)))
        point = table.sel(
            policy=name,
            rate=rate,
            horizon_s=10,
            short_to_long=error,
            quota=quota,
            kv_capacity=kv,
            response=law,
            seed=seed,
        )
        xr.testing.assert_equal(point.reset_coords(drop=True), expected.drop_attrs())


def test_a_policy_without_the_parameter_is_simulated_once(monkeypatch):
    served = []
    serve = sweep_module.serve
    monkeypatch.setattr(sweep_module, "serve", lambda *a: served.append(a[1].name) or serve(*a))
    table = sweep([qba.FCFS(), qba.QBA()], rate=5, quota=[1, 2, 3], seeds=2, progress=False, horizon_s=[10])
    assert sorted(served) == ["FCFS"] * 2 + ["QBA"] * 6
    fcfs = table.wait_mean_s.sel(policy="FCFS")
    assert (fcfs == fcfs.isel(quota=0)).all()


def test_results_do_not_depend_on_the_workers(monkeypatch):
    monkeypatch.setattr(sweep_module, "MOST_RUNS", 5)  # many pieces, of uneven size
    arguments = {"policies": ALL, "rate": [5, 9], "seeds": 7, "progress": False, "horizon_s": [10]}
    one, three = ThreadPoolExecutor(1), ThreadPoolExecutor(3)
    tables = [sweep(**arguments), sweep(**arguments, executor=one), sweep(**arguments, executor=three)]
    with ProcessPoolExecutor(2) as processes:
        tables.append(sweep(**arguments, executor=processes))
    assert all(tables[0].identical(table) for table in tables)
    assert one.submit(int).result() == 0  # the caller's executor is left open


def test_requests_are_the_same_under_every_policy():
    table = sweep(ALL, rate=[10], seeds=3, progress=False)
    assert (table.tokens == table.tokens.isel(policy=0)).all()
    assert (table.tokens.isel(policy=0).std("seed") > 0).all()


def test_replay_serves_given_windows():
    windows = [qba.synthetic(10, s, horizon_s=10) for s in range(5)]
    table = replay(windows, ALL, progress=False)
    assert table.wait_mean_s.dims == ("policy", "window")
    expected = summarize(qba.simulate(windows[3], qba.AA()))
    xr.testing.assert_equal(table.sel(policy="AA", window=3).reset_coords(drop=True), expected.drop_attrs())


def test_policies_of_one_class_are_told_apart():
    table = sweep([qba.QBA(quota=2), qba.QBA(quota=9), qba.PSF()], rate=3, seeds=1, progress=False)
    assert table.policy.values.tolist() == [repr(qba.QBA(quota=2)), repr(qba.QBA(quota=9)), "PSF"]


def test_an_error_in_a_piece_reaches_the_caller_and_cancels_the_rest(monkeypatch):
    monkeypatch.setattr(sweep_module, "MOST_RUNS", 1)
    cancelled = []

    class Lazy(ThreadPoolExecutor):
        def submit(self, function, *arguments):
            future = Future()
            if not cancelled:
                try:
                    future.set_result(function(*arguments))
                except qba.InputError as error:
                    future.set_exception(error)
            future.cancel = lambda: cancelled.append(1)
            return future

    with pytest.raises(qba.InputError, match="could never run"):
        sweep([qba.FCFS()], rate=5, seeds=3, kv_capacity=[64], executor=Lazy(1), progress=False)
    assert len(cancelled) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policies": []}, "policies = \\[\\]"),
        ({"policies": "QBA"}, "policies = 'QBA'"),
        ({"policies": [qba.QBA]}, "must be a list of policies"),
        ({"policies": qba.QBA}, "must be a list of policies"),
        ({"policies": None}, "policies = None"),
        ({"config": {}}, "config is {}, but it must be a qba.EngineConfig"),
        ({"executor": 4}, "executor is 4"),
        ({"rate": [[1], [2, 3]]}, "axis rate must be"),
        ({"seeds": [[1], [2, 3]]}, "seeds = "),
        ({"policies": [qba.QBA(), qba.QBA(quota=5)]}, "named twice"),
        ({"speed": [1]}, "unknown axis 'speed'"),
        ({"quota": [1]}, "unknown axis 'quota'"),
        ({"rate": []}, "axis rate must be"),
        ({"rate": ["fast"]}, "axis rate must be"),
        ({"rate": [3, 3]}, "axis rate names a value twice"),
        ({"rate": [0]}, "rate = 0"),
        ({"kv_safety": [2]}, "kv_safety = 2"),
        ({"short_to_long": [2]}, "short_to_long = 2"),
        ({"response": [462]}, "axis response must be a distribution of lengths"),
        ({"prompt": []}, "axis prompt must be a distribution of lengths"),
        ({"prompt": [Exponential(5), Exponential(5.0)]}, "axis prompt names a value twice"),
        ({"seeds": 0}, "seeds = 0"),
        ({"seeds": [-1]}, "seed = -1"),
        ({"seeds": [0.5]}, "seeds = "),
    ],
)
def test_impossible_grids_are_refused(arguments, message):
    with pytest.raises(qba.InputError, match=message):
        sweep(**{"policies": [qba.PSF()], "rate": [3], "seeds": 1, "progress": False} | arguments)


def test_options_are_axes_too():
    options = {"kv_projection": ["reserve-prompt", "reserve-all"], "decode_partial": [True, False]}
    table = sweep([qba.QBA()], rate=[9], seeds=1, progress=False, horizon_s=[10], promotion_clears=["start"], **options)
    config = qba.EngineConfig(kv_projection="reserve-all", decode_partial=False)
    run = qba.simulate(qba.synthetic(9, 0, horizon_s=10), qba.QBA(promotion_clears="start"), config)
    point = table.wait_mean_s.sel(kv_projection="reserve-all", decode_partial=False)
    assert point.item() == run.wait_s.values.mean()
    with pytest.raises(qba.InputError, match="axis kv_projection must be a name"):
        sweep([qba.QBA()], kv_projection=[1])


def test_a_grid_says_what_was_held_fixed():
    table = sweep([qba.QBA(quota=3)], rate=3, seeds=1, progress=False, config=qba.EngineConfig(token_budget=64))
    assert table.attrs["policies"] == repr(qba.QBA(quota=3)) and "token_budget=64" in table.attrs["engine"]
    assert f"prompt={PROMPT!r}" in table.attrs["workload"] and "rate" not in table.attrs["workload"]
    assert "requests" not in table.attrs["workload"]  # their number follows from the horizon
    table = sweep([qba.PSF()], rate=3, seeds=1, progress=False, prompt=Exponential(5), requests=[7])
    assert "prompt" not in table.attrs["workload"] and table.prompt.values.tolist() == ["Exponential(mean=5)"]
    assert table.batches.dims == ("policy", "rate", "prompt", "requests", "seed")


def test_only_a_run_can_be_summarised():
    for wrong in (xr.Dataset(), qba.simulate(qba.synthetic(1), qba.PSF(), record=True)):
        with pytest.raises(qba.InputError, match="the dataset that qba.simulate returns"):
            summarize(wrong)


def test_replay_needs_windows():
    with pytest.raises(qba.InputError, match="windows is empty"):
        replay([], ALL)


@given(
    st.lists(st.floats(0, 1e6) | st.integers(0, 9), min_size=1, max_size=60),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
def test_quantiles_are_numpys_to_the_last_bit(sample, levels):
    for values in (np.array(sample, dtype=float), np.array(sample).astype(np.int64)):
        assert quantiles(values, levels) == np.quantile(values, levels).tolist()


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-1e6, 1e6)), min_size=2, max_size=60))
def test_ranks_and_their_correlation_are_scipys(pairs):
    a, b = np.array(pairs, dtype=float).T
    assert ranks(a).tolist() == stats.rankdata(a).tolist()
    if a.min() < a.max() and b.min() < b.max():
        assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert np.isnan(rank_correlation(a, b))
