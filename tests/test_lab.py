"""The policy lab: the studies are the simulations they say, who dominates whom, and the published numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

import qba
from qba import lab, paths
from qba.engine.simulate import serve
from qba.figures import lab as pictures
from qba.metrics import SUMMARY, summary_values
from qba.predictor import predict
from qba.results import load
from qba.rivals import SSJF, WRR, Boost
from qba.traces import standin_2024

FEW = [qba.FCFS(), SSJF(), qba.QBA()]


@pytest.fixture(scope="module")
def study() -> xr.Dataset:
    return lab.lab_study([30, 32], 3, FEW, progress=False)


def value(requests: qba.Requests, policy, name: str) -> float:
    config = qba.EngineConfig()
    values = summary_values(requests, policy, config, serve(requests, policy, config))
    return values[list(SUMMARY).index(name)]


def test_the_study_is_the_simulation_it_says(study):
    assert dict(study.sizes) == {"prediction": 2, "policy": 3, "rate": 2, "seed": 3}
    requests = qba.synthetic(32, 2)
    for name, noise in lab.PREDICTIONS.items():
        for policy in FEW:
            here = study.sel(prediction=name, policy=policy.name, rate=32, seed=2)
            for statistic in lab.CRITERIA:
                assert here[statistic].item() == value(predict(requests, 2, **noise), policy, statistic)
    fcfs = study.wait_mean_s.sel(policy="FCFS")
    assert (fcfs.sel(prediction="noisy") == fcfs.sel(prediction="perfect")).all(), "who knows nothing cannot be misled"


def test_windows_are_served_with_the_same_noise():
    found = lab.lab_windows(4, FEW, progress=False)
    window = predict(standin_2024(4)[3], 3, **lab.NOISE)
    assert found.wait_p99_s.sel(prediction="noisy", policy="SSJF", window=3).item() == value(
        window, SSJF(), "wait_p99_s"
    )


def test_the_gate_is_the_paired_difference_and_vanishes_for_large_quotas():
    found = lab.gate_study([3, 50], seeds=4, progress=False)
    gated = qba.sweep([qba.QBA(quota=3, promotion_clears="start")], 32, 4, progress=False).wait_mean_s.squeeze()
    plain = qba.sweep([WRR(k=3)], 32, 4, progress=False).wait_mean_s.squeeze()
    expected = ((gated - plain) / plain.mean()).mean().item()
    assert found.wait_mean_s.sel(quota=3, estimate="value").item() == pytest.approx(expected)
    assert abs(found.wait_mean_s.sel(quota=50, estimate="value").item()) < 0.02
    assert found.attrs["shorts_to_longs"] == pytest.approx(5.667, abs=1e-3)
    assert all(v.attrs["units"] and v.attrs["long_name"] for v in found.variables.values())


def made(**means: tuple[float, float, float]) -> xr.Dataset:
    """A study of policies with these means of the three criteria, and the same scatter for all."""
    scatter = np.random.default_rng(0).normal(size=20)
    scatter -= scatter.mean()
    own = 0.01 * np.random.default_rng(1).normal(size=(len(means), 3, 20))
    values = np.array(list(means.values()))[:, :, None] + scatter + own - own.mean(axis=2, keepdims=True)
    return xr.Dataset(
        {name: (("policy", "seed"), values[:, i]) for i, name in enumerate(lab.CRITERIA)}, {"policy": list(means)}
    )


def test_a_policy_is_dominated_by_one_that_is_surely_lower_in_all():
    found = lab.undominated(
        made(best=(5, 5, 5), worse=(6, 6, 6), trades=(4, 7, 7), tied=(5, 5, 5), nearly=(5.2, 5.2, 4.9))
    )
    assert dict(zip(found.policy.values, found.values.tolist())) == {
        "best": True, "worse": False, "trades": True, "tied": True, "nearly": True,
    }  # fmt: skip


def test_policies_with_the_same_figures_share_a_row(study):
    one = study.sel(rate=32, prediction="perfect")
    twin = xr.concat([one, one.sel(policy=["FCFS"]).assign_coords(policy=["Same"])], "policy")
    table = lab.frontier_table(twin)
    assert table["policy"][0] == "FCFS, Same" and table["mean"][0] == table["tail"][0] == 1
    assert len(table["policy"]) == 3
    ratio = one.wait_mean_s.sel(policy="SSJF").mean() / one.wait_mean_s.sel(policy="FCFS").mean()
    assert table["mean"][table["policy"].index("SSJF")] == pytest.approx(ratio.item())


def test_the_text_names_all_and_marks_the_undominated(study):
    part = study.sel(rate=32, prediction="perfect")
    lines = lab.trade_text(part).splitlines()
    assert lines[1].split()[:3] == ["*", "SSJF", "length"] and len(lines) == 5
    best = lab.undominated(part)
    assert [line.startswith("*") for line in lines[1:4]] == [
        bool(best.sel(policy=line[2:].split()[0])) for line in lines[1:4]
    ]


def test_pictures(study):
    drawn = json.dumps(pictures.frontier(study).to_dict())
    assert all(text in drawn for text in ("SSJF", "QBA", "30 requests/s, noisy predictions", "3 paired seeds"))
    gate = json.dumps(pictures.gate(lab.gate_study([3, 8], seeds=3, progress=False)).to_dict())
    assert "5.67" in gate and "P99 of the wait" in gate


def test_the_published_numbers_are_those_of_this_code():
    published = load(paths.repository() / "results" / "lab.nc")
    again = lab.lab_study([32], 2, [qba.QBA(), Boost()], progress=False)
    there = published.sel(rate=[32], seed=[0, 1], policy=["QBA", "Boost"])
    for name in lab.KEEPS:
        np.testing.assert_array_equal(again[name], there[name].transpose(*again[name].dims))
    gate = load(paths.repository() / "results" / "lab_gate.nc")
    once = lab.gate_study([5], progress=False)
    np.testing.assert_array_equal(once.wait_mean_s, gate.wait_mean_s.sel(quota=[5]).transpose(*once.wait_mean_s.dims))
    windows = load(paths.repository() / "results" / "lab_windows.nc")
    few = lab.lab_windows(100, [qba.PSF()], progress=False)
    np.testing.assert_array_equal(
        few.wait_p99_s, windows.wait_p99_s.sel(policy=["PSF"]).transpose(*few.wait_p99_s.dims)
    )
