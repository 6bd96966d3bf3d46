"""Which length to predict: theory by hand, responses dealt out anew, and what the traces say."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pytest
from scipy import stats

import qba
from qba import azure, excerpt, labels
from qba.figures import labels as figures
from qba.traces import relabel, standin_2024
from real_traces import real_trace

TRACES = {
    "stand-in 2024": standin_2024(6, 200),
    "synthetic": [qba.synthetic(seed=seed, horizon_s=6) for seed in range(6)],
}


@pytest.fixture(scope="module")
def by_label():
    return labels.label_study(TRACES, progress=False)


@pytest.fixture(scope="module")
def by_dependence():
    return labels.dependence_study(TRACES, (-0.3, 0.2, 0.7), progress=False)


@pytest.fixture(scope="module")
def real():
    for name in ("AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.csv"):
        real_trace(name)
    return labels.label_study(labels.trace_windows(real_trace(excerpt.FILENAME).parent), progress=False)


def test_nothing_is_gained_where_work_is_shared_out_evenly():
    assert labels.cobham_change(0.8, 0.15, 0.15) == pytest.approx(0)
    assert labels.cobham_change(0.8, 0.15, 0.4) < 0 < labels.cobham_change(0.8, 0.15, 0.1)
    assert labels.cobham_change(0.8, 0.5, 1.0) == pytest.approx(0.6 - 1)  # shorts bring no work: (0.2 + 1) / 2 of it
    assert np.isnan(labels.cobham_change(1.0, 0.15, 0.4))


def test_change_by_hand():
    load, long, work = 0.7, 0.2, 0.5
    assert labels.cobham_change(load, long, work) == pytest.approx((0.3 * 0.8 + 0.2) / (1 - 0.35) - 1)


def test_time_alone_by_the_engines_own_clock():
    """A long response takes as many times longer than a prompt of that length as the weight says."""
    lonely = qba.EngineConfig(kv_capacity=100_000)

    def busy(prompt, response):
        requests = qba.Requests(arrival_s=[0.0], prompt_tokens=[prompt], response_tokens=[response])
        return qba.simulate(requests, qba.FCFS(), lonely).busy_s.item()

    tokens = 128 * 64
    ratio = (busy(128, tokens + 8) - busy(128, 8)) / (busy(128 + tokens, 8) - busy(128, 8))
    assert labels.time_weight() == pytest.approx(ratio, rel=1e-9)
    weights = labels.label_weights()
    assert list(weights.values()) == sorted(weights.values())


@pytest.mark.parametrize("asked", [-0.3, 0.0, 0.4, 0.8])
def test_responses_are_dealt_out_as_asked(asked):
    [part] = standin_2024(1, 20_000)
    dealt = labels.rearrange(part, asked)
    assert (dealt.arrival_s == part.arrival_s).all() and (dealt.prompt_tokens == part.prompt_tokens).all()
    assert (np.sort(dealt.response_tokens) == np.sort(part.response_tokens)).all()
    found = stats.spearmanr(dealt.prompt_tokens, dealt.response_tokens).statistic
    assert found == pytest.approx(asked, abs=0.03)


def test_dealing_is_reproducible_and_paired():
    [part] = standin_2024(1, 300)
    first, again, other = (labels.rearrange(part, 0.5, seed=seed) for seed in (1, 1, 2))
    assert (first.response_tokens == again.response_tokens).all()
    assert (first.response_tokens != other.response_tokens).any()
    one = labels.rearrange(part, 1.0)
    assert stats.spearmanr(one.prompt_tokens, one.response_tokens).statistic > 0.99


def test_label_study_is_the_replay_it_says(by_label):
    assert by_label.wait_mean_s.dims == ("trace", "label", "policy", "window")
    parts = [relabel(part, "total") for part in TRACES["synthetic"]]
    run = qba.simulate(parts[3], qba.PSF())
    cell = by_label.sel(trace="synthetic", label="total")
    assert cell.wait_mean_s.sel(policy="PSF").values[3] == pytest.approx(run.wait_s.mean().item(), rel=1e-12)
    work = [part.prompt_tokens + part.response_tokens for part in parts]
    long = sum(w[part.true_long].sum() for w, part in zip(work, parts))
    assert cell.long_work.item() == pytest.approx(long / sum(w.sum() for w in work))
    assert cell.weight == 1


def test_total_tokens_hold_the_most_work(by_label):
    """No other label of as many requests can hold more, but for ties and windows."""
    total = by_label.long_work.sel(label="total")
    assert (by_label.long_work <= total + 0.005).all()


def test_tenths_hold_all_tokens(by_label):
    parts = TRACES["synthetic"]
    tokens = np.mean(np.concatenate([part.response_tokens for part in parts]))
    assert by_label.response_by_response.sel(trace="synthetic").mean() == pytest.approx(tokens, rel=0.01)
    assert (np.diff(by_label.response_by_response.values) >= 0).all()


def test_more_dependence_more_gain(by_dependence):
    assert by_dependence.wait_mean_s.dims == ("trace", "asked", "label", "policy", "window")
    by_response = by_dependence.sel(label="response", trace="stand-in 2024")
    wait = by_response.wait_mean_s.mean("window")
    change = wait.sel(policy="PSF") / wait.sel(policy="FCFS") - 1
    assert (np.diff(change.values) < 0).all()
    assert (np.diff(by_response.long_work.values) > 0).all()
    assert (np.diff(by_response.predicted_change.values) < 0).all()


def test_fcfs_sees_no_label(by_label):
    fcfs = by_label.wait_mean_s.sel(policy="FCFS")
    assert (fcfs == fcfs.isel(label=0)).all()


def test_every_variable_is_labelled(by_label, by_dependence):
    for dataset in (by_label, by_dependence):
        for variable in dataset.variables.values():
            assert variable.attrs["units"] and variable.attrs["long_name"]


def rows_with(chart: alt.TopLevelMixin, *columns: str) -> list[list[dict[str, Any]]]:
    """The chart's tables that have these columns; the chart is checked against the schema."""
    return [table for table in chart.to_dict()["datasets"].values() if table and set(columns) <= table[0].keys()]


def test_work_by_response_shows_both_lengths(by_label):
    chart = figures.work_by_response(by_label)
    tables = rows_with(chart, "part", "tenth", "tokens")
    assert len(tables) == len(TRACES)
    last = [row["tokens"] for table in tables for row in table if (row["part"], row["tenth"]) == ("response", 10)]
    assert sorted(last) == pytest.approx(sorted(by_label.response_by_response.sel(tenth=10).values), rel=1e-4)


def test_gain_by_label_shows_pooled_changes_and_intervals(by_label):
    tables = rows_with(figures.gain_by_label(by_label), "trace", "label", "change")
    assert len(tables) == 4  # PSF and QBA, mean wait and P99
    rows = [row for table in tables for row in table if (row["trace"], row["label"]) == ("synthetic", "total")]
    for row in rows:
        assert row["low"] < row["change"] < row["high"]
    expected = []
    for variable in ("wait_mean_s", "wait_p99_s"):
        wait = by_label[variable].sel(trace="synthetic", label="total").mean("window")
        expected += [(wait.sel(policy=name) / wait.sel(policy="FCFS") - 1).item() for name in ("PSF", "QBA")]
    assert sorted(row["change"] for row in rows) == pytest.approx(sorted(expected), rel=1e-4)


def test_gain_by_dependence_shows_family_theory_and_marks(by_label, by_dependence):
    chart = figures.gain_by_dependence(by_label, by_dependence)
    tables = rows_with(chart, "asked", "rank_correlation", "long_work", "predicted_change", "change")
    assert tables and all({row["asked"] for row in table} == {-0.3, 0.2, 0.7} for table in tables)
    marks = [table for table in rows_with(chart, "long_work", "change", "label") if "asked" not in table[0]]
    assert {row["label"] for table in marks for row in table} == {"response", "total", "prompt"}
    work = {row["long_work"] for table in marks for row in table if row["label"] == "total"}
    assert sorted(work) == pytest.approx(sorted(by_label.long_work.sel(label="total").values), rel=1e-4)


def test_fit_figure_shows_the_comparisons_values():
    study = excerpt.compare(TRACES["stand-in 2024"][0], resamples=20)
    chart = figures.excerpt_fit(study)
    [table] = rows_with(chart, "statistic", "figure")
    [row] = [r for r in table if (r["statistic"], r["source"]) == ("correlation", "excerpt")]
    value = study.dependence.sel(statistic="correlation", source="excerpt", value="figure").item()
    assert row["figure"] == pytest.approx(value, rel=1e-4)
    assert len(rows_with(chart, "level", "figure")) == 2


def test_on_real_traces_the_prompt_alone_does_as_well_as_all_tokens(real):
    """And the response does worse by far; where responses make the work, in the synthetic workload, it needs both."""
    wait = real.wait_mean_s.mean("window")
    change = wait.sel(policy="PSF") / wait.sel(policy="FCFS") - 1
    prompt, total, response = (change.sel(label=name) for name in ("prompt", "total", "response"))
    served = [*azure.TRACES_2023, "stand-in 2024", "excerpt 2024"]
    assert (abs(prompt - total).sel(trace=served) < 0.01).all()
    assert (response.sel(trace=served) > total.sel(trace=served) + 0.1).all()
    assert (abs(response.sel(trace=list(azure.TRACES_2023))) < 0.06).all()
    synthetic = change.sel(trace="synthetic")
    assert synthetic.sel(label="total") < min(synthetic.sel(label="prompt"), synthetic.sel(label="response")) - 0.03


def test_missing_files_are_named(tmp_path):
    with pytest.raises(qba.traces.MissingTraceError, match="no AzureLLMInferenceTrace_code.csv in"):
        labels.trace_windows(tmp_path)
