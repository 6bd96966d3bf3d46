"""Advice on a trace of one's own: measures and how sure they are, comparing, tuning, capacity, and the pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import qba
from qba.advice import capacity, compare, describe, tune
from qba.advice import text as texts
from qba.advice.comparison import remarks
from qba.advice.description import full_rate, warnings
from qba.advice.files import flat, write_study
from qba.advice.measures import Measure, bound, estimate, measure, objective, window_edges
from qba.advice.sustained import TOLERANCE
from qba.figures import advice as pictures
from qba.metrics import SUMMARY
from qba.results import load

ENGINE = qba.EngineConfig(kv_capacity=32768)


@pytest.fixture(scope="module")
def requests() -> qba.Requests:
    return qba.synthetic(31, seed=1, requests=6000)


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("mean", "wait_mean_s"),
        ("p99_long", "wait_p99_true_long_s"),
        ("P50_short", "wait_p50_true_short_s"),
        ("ttft_p99", "ttft_p99_s"),
        ("latency_mean", "latency_mean_s"),
        ("wait_p99", "wait_p99_s"),
    ],
)
def test_measures_have_the_names_of_summaries(text, variable):
    assert measure(text).variable == variable and variable in SUMMARY
    assert measure(measure(text).name) == measure(text)


@given(st.sampled_from(["wait", "ttft", "latency"]), st.integers(1, 999), st.sampled_from(["", "short", "long"]))
def test_a_measures_name_is_read_back(quantity, tenths, group):
    made = Measure(quantity, float(f"{tenths / 10:.1f}") / 100, group)
    assert measure(made.name).variable == made.variable


def test_bounds_and_objectives_are_read():
    assert str(bound("p99_long<=2.0s")) == str(bound("p99_long  ≤ 2")) == "p99_long <= 2"
    wanted = objective("minimise ttft_mean subject to p99_long <= 2 and p99 <= 4, mean_short < 1")
    assert str(wanted) == "min ttft_mean s.t. p99_long <= 2 and p99 <= 4 and mean_short <= 1"
    assert str(objective("min mean")) == "min mean" and objective(str(wanted)) == wanted


@pytest.mark.parametrize("text", ["p99", "p99 >= 2", "p99 <= fast", "p99 <= -1", "p99 <= nan", "<= 2", ""])
def test_a_bound_that_is_none_is_refused(text):
    with pytest.raises(qba.InputError, match="p99_long <= 2.0"):
        bound(text)


@pytest.mark.parametrize("text", ["p0", "p100", "max", "mean_medium", "queue_p99", "p99_true_long"])
def test_an_unknown_measure_is_refused(text):
    with pytest.raises(qba.InputError, match="no measure"):
        measure(text)


@pytest.mark.parametrize("text", ["mean", "max mean", "min", "min mean s.t.", "min mean s.t. p99"])
def test_an_objective_that_is_none_is_refused(text):
    with pytest.raises(qba.InputError):
        objective(text)


def test_windows_are_equal_and_hold_enough():
    assert window_edges(6000).tolist() == list(range(0, 6001, 300))
    assert window_edges(300).tolist() == [0, 50, 100, 150, 200, 250, 300]
    assert window_edges(100).tolist() == [0, 100]


def test_an_estimate_is_the_samples_own_statistic():
    values = np.random.default_rng(0).exponential(size=1000)
    members = values > 0.2
    edges = window_edges(1000, 10)
    assert estimate(values, None, None, edges)[0] == pytest.approx(values.mean())
    assert estimate(values, members, 0.99, edges)[0] == np.quantile(values[members], 0.99)
    chosen = np.array([1, 3])
    picked = np.concatenate([values[100:200], values[300:400]])
    assert estimate(values, None, 0.5, edges, chosen)[0] == np.quantile(picked, 0.5)
    # By equal windows the jackknife's error of a mean is the usual one.
    means = values.reshape(10, 100).mean(axis=1)
    half = 2.262157 * means.std(ddof=1) / np.sqrt(10)
    assert np.diff(estimate(values, None, None, edges))[1] / 2 == pytest.approx(half, rel=1e-5)


def test_an_estimate_without_a_sample_or_windows_is_nan():
    values = np.arange(100.0)
    assert np.isnan(estimate(values, np.zeros(100, bool), None, window_edges(100))).all()
    value, low, high = estimate(values, None, 0.5, window_edges(100))
    assert value == 49.5 and np.isnan([low, high]).all()
    assert estimate(np.ones(1000), None, 0.9, window_edges(1000)) == (1, 1, 1)


@pytest.mark.parametrize("level", [None, 0.5, 0.99])
def test_intervals_cover_the_truth_of_a_dependent_sequence(level):
    """Waits of an AR(1) kind: neighbours alike, windows nearly independent."""
    rng = np.random.default_rng(5)
    n, runs, hits = 4000, 200, 0
    truth = {None: np.exp(0.5), 0.5: 1.0, 0.99: np.exp(2.3263479)}[level]
    for _ in range(runs):
        noise = rng.standard_normal(n) * np.sqrt(1 - 0.8**2)
        noise[0] = rng.standard_normal()
        series = xr.DataArray(noise).values.copy()
        for i in range(1, n):
            series[i] += 0.8 * series[i - 1]
        _, low, high = estimate(np.exp(series), None, level, window_edges(n))
        hits += low <= truth <= high
    assert 0.88 <= hits / runs <= 0.99


def test_compare_gives_what_simulate_gives(requests):
    study = compare(requests, [qba.FCFS(), qba.QBA(quota=3)], ENGINE, progress=False)
    for policy in (qba.FCFS(), qba.QBA(quota=3)):
        summary = qba.summarize(qba.simulate(requests, policy, ENGINE))
        one = study.sel(policy=policy.name)
        for name in ("wait_mean_s", "wait_p99_true_long_s", "ttft_p99_s", "latency_mean_s"):
            assert one[name].sel(estimate="value").item() == pytest.approx(summary[name].item(), rel=1e-12)
            assert one[name].sel(estimate="low") <= one[name].sel(estimate="value") <= one[name].sel(estimate="high")
        for name in ("throughput_tokens_per_s", "kv_overflows", "batch_utilization"):
            assert one[name].item() == summary[name].item()
    assert (study.wait_change.sel(policy="FCFS") == 0).all()
    waits = study.window_wait_s.mean("window")
    expected = waits.sel(policy="QBA") / waits.sel(policy="FCFS") - 1
    assert study.wait_change.sel(policy="QBA", estimate="value").item() == pytest.approx(expected.item())
    assert all(v.attrs["units"] and v.attrs["long_name"] for v in study.variables.values())


def test_compare_says_where_waits_are_not_typical(requests):
    fast = qba.synthetic(60, seed=1, requests=3000)
    lines = remarks(compare(fast, [qba.FCFS()], ENGINE, progress=False))
    assert any("cannot keep up" in line for line in lines)
    slow = qba.synthetic(20, seed=1, requests=3000)
    assert not any("keep up" in line for line in remarks(compare(slow, [qba.FCFS()], ENGINE, progress=False)))
    few = qba.synthetic(20, seed=1, requests=60)
    assert any("too few requests (60)" in line for line in remarks(compare(few, [qba.FCFS()], ENGINE, progress=False)))


def test_describe_tells_poisson_from_bursts_and_counts(requests):
    about = describe(requests, ENGINE)
    assert about.requests == 6000 and about.rate.item() == pytest.approx(5999 / np.ptp(requests.arrival_s))
    assert about.interarrival_scv.item() == pytest.approx(1, abs=0.15) and about.tied_share == 0
    assert about.rate_course.mean().item() * np.ptp(requests.arrival_s) == pytest.approx(6000)
    assert about.length_quantile.sel(length="response", level=0.5) == np.median(requests.response_tokens)
    assert about.length_quantile.sel(length="prompt", level=1) == requests.prompt_tokens.max()
    assert about.offered_load.item() == pytest.approx(about.rate.item() / full_rate(requests, ENGINE))
    assert all(v.attrs["units"] and v.attrs["long_name"] for v in about.variables.values())


def test_describe_warns_where_the_label_does_not_predict_the_work():
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(0.05, 4000))
    made = qba.Requests(
        arrival_s=arrival, prompt_tokens=rng.geometric(1 / 1500, 4000), response_tokens=rng.integers(1, 60, 4000)
    )
    about = describe(made, ENGINE)
    [line] = [line for line in warnings(about) if "hardly predicts" in line]
    assert "--label-by" in line and about.long_work.sel(label="total") > 2 * about.long_work.sel(label="response")
    assert not any("hardly predicts" in line for line in warnings(about, "total"))
    assert not any("hardly predicts" in line for line in warnings(describe(qba.synthetic(30), ENGINE)))


def test_describe_warns_of_load_and_of_prompts_that_can_never_run(requests):
    assert any("hardly busy" in line for line in warnings(describe(qba.synthetic(5), ENGINE)))
    assert any("queues grow" in line for line in warnings(describe(qba.synthetic(60), ENGINE)))
    assert any("can never run" in line for line in warnings(describe(requests, qba.EngineConfig(kv_capacity=1000))))
    with pytest.raises(qba.InputError, match="arrive at once"):
        describe(qba.Requests(arrival_s=[1, 1], prompt_tokens=[1, 2], response_tokens=[3, 4]))


def test_tune_finds_the_best_that_surely_keeps_the_bound(requests):
    study = tune(
        requests, "min mean s.t. p99_long <= 0.25", ENGINE, quotas=(1, 4, 12), quantiles=(0.5, 0.9), progress=False
    )
    search = study.sel(part="search")
    surely = (search.wait_p99_true_long_s.sel(estimate="high") <= 0.25).values
    goal = search.wait_mean_s.sel(estimate="value").values
    assert surely.any() and not surely.all()
    assert ((study["rank"] >= 0).values == surely).all()
    best = int(np.flatnonzero(study["rank"].values == 0)[0])
    assert goal[best] == goal[surely].min()
    # The figures are those of a run, over every other window of forty.
    policy = qba.QBA(quota=4, aging_quantile=0.9)
    row = np.flatnonzero((study.quota == 4) & (study.aging_quantile == 0.9) & (study.policy == "QBA"))[0]
    waits = qba.simulate(requests, policy, ENGINE).wait_s.values.reshape(40, 150)
    for part, rows in (("search", waits[::2]), ("held out", waits[1::2])):
        assert study.wait_mean_s.sel(part=part, estimate="value").values[row] == pytest.approx(rows.mean())
    said = texts.tune_text(study)
    assert f"use {texts.setting(study.isel(setting=best))}" in said and "FCFS" in said and "PSF" in said


def test_tune_says_when_no_setting_meets_the_bound(requests):
    study = tune(requests, "min mean s.t. p99_long <= 0.001", ENGINE, quotas=(2,), quantiles=(0.9,), progress=False)
    assert (study["rank"] == -1).all()
    said = texts.tune_text(study)
    assert "no setting surely meets the bounds" in said and "s over)" in said
    assert "FCFS p99_long" in said and "PSF p99_long" in said


def test_tune_without_a_bound_takes_the_least(requests):
    study = tune(requests, "min p99_long", ENGINE, quotas=(2,), quantiles=(0.9,), progress=False)
    goal = study.wait_p99_true_long_s.sel(part="search", estimate="value").values
    assert study["rank"].values[goal.argmin()] == 0 and (study["rank"] >= 0).all()
    with pytest.raises(qba.InputError, match="too few"):
        tune(qba.synthetic(30, requests=300), "min mean", ENGINE, progress=False)


def test_capacity_is_where_the_bound_breaks(requests):
    study = capacity(requests, "p99 <= 2", [qba.FCFS(), qba.QBA()], ENGINE, progress=False)
    own = study.attrs["own_rate"]
    for policy in (qba.FCFS(), qba.QBA()):
        value, low, high = study.sustained_rate.sel(policy=policy.name).values
        assert low <= value <= high

        def p99(rate):
            paced = requests.replace(arrival_s=(requests.arrival_s - requests.arrival_s[0]) * (own / rate))
            return qba.summarize(qba.simulate(paced, policy, ENGINE)).wait_p99_s.item()

        assert p99(value) <= 2 < p99(value * (1 + 1.5 * TOLERANCE))
    curve = study.wait_p99_s.sel(estimate="value")
    assert (curve.isel(rate=-1) > 2).all() and (curve.isel(rate=0) < 2).all()


def test_capacity_beyond_what_was_tried_is_said(requests):
    never = capacity(requests, "mean <= 0", [qba.FCFS()], ENGINE, progress=False)
    always = capacity(requests, "p50 <= 1e6", [qba.FCFS()], ENGINE, progress=False)
    assert never.sustained_rate.sel(estimate="value").item() == 0
    assert np.isinf(always.sustained_rate.sel(estimate="value").item())
    assert "above " in texts.capacity_text(always) and "below " in texts.capacity_text(never)
    with pytest.raises(qba.InputError, match="arrive at once"):
        capacity(
            qba.Requests(arrival_s=[1, 1], prompt_tokens=[1, 2], response_tokens=[3, 4]), "p99 <= 1", progress=False
        )


def test_advice_does_not_depend_on_the_number_of_workers(requests, monkeypatch):
    study = compare(requests, config=ENGINE, progress=False)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    xr.testing.assert_identical(study, compare(requests, config=ENGINE, progress=False))


def test_studies_become_files(requests, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("any")
    study = tune(requests, "min mean s.t. p99_long <= 8", ENGINE, quotas=(2, 4), quantiles=(0.9,), progress=False)
    paths = write_study(tmp_path / "out", "tune", study, pictures.frontier(study), trace)
    assert [path.name for path in paths] == ["tune.nc", "tune.csv", "tune.svg", "tune.png"]
    assert json.loads(load(paths[0]).attrs["qba_sources"])["trace.csv"]
    table = flat(study)
    assert len(table) == study.sizes["setting"] * 2 and "wait_mean_s_high" in table
    assert table.wait_mean_s[0] == study.wait_mean_s.values[0, 0, 0]
    assert len(flat(describe(requests, ENGINE))) == 1
    with pytest.raises(qba.InputError, match="cannot be written"):
        write_study(trace / "below", "tune", study, pictures.frontier(study), trace)


def test_pictures_show_every_policy(requests):
    about = describe(requests, ENGINE)
    study = compare(requests, config=ENGINE, progress=False)
    tuned = tune(requests, "min mean s.t. p99_long <= 8", ENGINE, quotas=(2,), quantiles=(0.9,), progress=False)
    limits = capacity(requests, "p99 <= 2", config=ENGINE, progress=False)
    for chart in (pictures.comparison(study), pictures.frontier(tuned), pictures.capacities(limits)):
        drawn = json.dumps(chart.to_dict())
        assert all(f'"{name}"' in drawn for name in ("FCFS", "PSF", "AA", "QBA"))
    assert "6,000 requests" in json.dumps(pictures.trace(about, requests).to_dict())
