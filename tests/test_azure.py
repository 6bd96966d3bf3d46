"""The two studies of production traffic: their shape, their bookkeeping, and what the paper's Table II becomes."""

from __future__ import annotations

import numpy as np
import pytest

import qba
from qba import azure
from real_traces import real_trace

BY_WINDOW = ("interarrival_scv", "tokens_per_request", "length_correlation")


@pytest.fixture(scope="module")
def standin():
    return azure.azure_standin_study(count=12, requests_per_window=400, progress=False)


@pytest.fixture(scope="module")
def real():
    folder = real_trace("AzureLLMInferenceTrace_code.csv").parent
    real_trace("AzureLLMInferenceTrace_conv.csv")
    return azure.azure_2023_study(folder, progress=False)


def test_standin_study_is_named_one(standin):
    assert "stand-in" in standin.attrs["traffic"]
    assert "stand-in" in azure.table2(standin).attrs["traffic"]
    assert standin.wait_mean_s.dims == ("policy", "window")
    assert standin.sizes["window"] == 12 and standin.requests_per_window == 400
    for name in BY_WINDOW:
        assert standin[name].dims == ("window",)


def test_standin_windows_are_what_the_engine_simulates(standin):
    part = qba.traces.standin_2024(12, 400)[7]
    run = qba.simulate(part, qba.QBA())
    assert standin.wait_mean_s.sel(policy="QBA").values[7] == pytest.approx(run.wait_s.mean().item(), rel=1e-12)
    assert standin.interarrival_scv.values[7] == qba.traces.interarrival_scv(part)


def test_every_variable_is_labelled(standin):
    for dataset in (standin, azure.table2(standin), azure.windows_in_order(standin)):
        for variable in dataset.variables.values():
            assert variable.attrs["units"] and variable.attrs["long_name"]


def test_table2_by_hand(standin):
    table = azure.table2(standin)
    fcfs, qba_ = (standin.sel(policy=name) for name in ("FCFS", "QBA"))
    assert table.wait_change.sel(policy="FCFS") == 0
    change = qba_.wait_mean_s.values.mean() / fcfs.wait_mean_s.values.mean() - 1
    assert table.wait_change.sel(policy="QBA").item() == pytest.approx(change)
    assert table.wait_p99_true_long_s.sel(policy="QBA") == np.median(qba_.wait_p99_true_long_s)
    assert table.kv_overflows.sel(policy="QBA") == qba_.kv_overflows.sum()


def test_order_is_counted_window_by_window(standin):
    counts = azure.windows_in_order(standin)
    psf, quota, aging = (standin.wait_mean_s.sel(policy=name).values for name in ("PSF", "QBA", "AA"))
    assert counts.wait_mean == sum(a < b < c for a, b, c in zip(psf, quota, aging))
    psf, quota, aging = (standin.wait_p99_true_long_s.sel(policy=name).values for name in ("PSF", "QBA", "AA"))
    assert counts.true_long_p99 == sum(a > b > c for a, b, c in zip(psf, quota, aging))
    assert counts.windows == 12


def test_missing_policies_are_named(standin):
    with pytest.raises(qba.InputError, match="FCFS is not among the policies PSF, QBA"):
        azure.table2(standin.sel(policy=["PSF", "QBA"]))
    with pytest.raises(qba.InputError, match="AA is not among the policies PSF, QBA"):
        azure.windows_in_order(standin.sel(policy=["PSF", "QBA"]))


def test_standin_shows_the_papers_tension():
    """At full size: shorts first cuts the mean wait and stretches the long tail, QBA lies between (section IV-E)."""
    table = azure.table2(azure.azure_standin_study(progress=False))
    wait = {name: table.wait_mean_s.sel(policy=name).item() for name in ("FCFS", "PSF", "QBA", "AA")}
    tail = {name: table.wait_p99_true_long_s.sel(policy=name).item() for name in ("FCFS", "PSF", "QBA", "AA")}
    assert wait["PSF"] < wait["QBA"] < wait["AA"] < wait["FCFS"]
    assert tail["AA"] < tail["QBA"] < tail["PSF"] and tail["FCFS"] < tail["QBA"]
    assert (table.kv_overflows == 0).all()


def test_real_study_has_all_sides(real):
    assert real.wait_mean_s.dims == ("trace", "label", "policy", "window")
    assert dict(real.sizes) == {"trace": 3, "label": 2, "policy": 4, "window": 100}
    assert real.requests_per_window.values.tolist() == [88, 193, 281]
    assert real.dropped_requests.values.tolist() == [0, 1, 1]
    for variable in real.variables.values():
        assert variable.attrs["units"] and variable.attrs["long_name"]


def test_fcfs_does_not_see_labels(real):
    fcfs = real.wait_mean_s.sel(policy="FCFS")
    assert (fcfs.sel(label="response") == fcfs.sel(label="total")).all()


def test_response_length_does_not_predict_work_on_the_traces_of_2023(real):
    """Labelled by responses, shorts first gains next to nothing; labelled by total work, a quarter to a half."""
    change = azure.table2(real).wait_change.sel(policy="PSF")
    assert (abs(change.sel(label="response")) < 0.06).all()
    assert ((change.sel(label="total") < -0.24) & (change.sel(label="total") > -0.56)).all()


def test_label_options_reach_the_windows():
    """They change the labels and so the policies, never FCFS."""
    few = dict(count=3, requests_per_window=300, progress=False)
    plain = azure.azure_standin_study(**few)
    for options in ({"label_by": "total"}, {"label_threshold": "whole"}):
        other = azure.azure_standin_study(**few, **options)
        assert (other.wait_mean_s.sel(policy="FCFS") == plain.wait_mean_s.sel(policy="FCFS")).all()
        assert (other.wait_mean_s.sel(policy="PSF") != plain.wait_mean_s.sel(policy="PSF")).any()


def test_real_labels_by_the_whole_trace_say_the_same(real):
    folder = real_trace("AzureLLMInferenceTrace_code.csv").parent
    whole = azure.table2(azure.azure_2023_study(folder, label_threshold="whole", progress=False)).wait_change
    own = azure.table2(real).wait_change
    assert (abs(whole - own) > 0).any()
    assert (abs(whole.sel(policy="PSF") - own.sel(policy="PSF")) < 0.04).all()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(qba.traces.MissingTraceError, match="no AzureLLMInferenceTrace_code.csv in"):
        azure.azure_2023_study(tmp_path)
