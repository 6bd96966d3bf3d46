"""The search for the lost workload: its rows are the scorecard's, and it finds a workload that is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import qba
from qba import calibrate
from qba.calibrate import FAMILIES, FRESH_SEEDS, PAPER, ROWS, Comparison, Family, Fit, compare, fit, rows, servable
from qba.calibrate import simulate_points
from qba.calibrate.identify import BASE, by_another_optimiser, calibration_study, parameter_covariance, profile
from qba.errors import InputError
from qba.lengths import Exponential, LogNormal, Uniform
from qba.paths import repository
from qba.results import load

PUBLISHED = repository() / "results"
SHORT = Family(horizon_s=10.0)
FEW = range(12)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_the_operating_points_are_those_of_the_published_study():
    few = compare(simulate_points({}, 5))
    published = {
        name: load(PUBLISHED / f"{name}.nc").sel(seed=range(5)) for name in ("load_sweep", "prediction_errors")
    }
    again = compare(published)
    np.testing.assert_allclose(few.log_error, again.log_error, rtol=0, atol=1e-12)
    np.testing.assert_allclose(few.influence, again.influence, rtol=0, atol=1e-10)


def test_the_rows_do_not_depend_on_the_order_of_seeds_or_on_what_else_is_simulated():
    one, other = (simulate_points(SHORT.workload(), seeds) for seeds in ([3, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]))
    for name in one:
        for variable in one[name]:
            np.testing.assert_array_equal(one[name][variable].sel(seed=2), other[name][variable].sel(seed=2))


def test_a_plain_mean_has_its_usual_standard_error():
    points = simulate_points({}, 40)
    found = compare(points)
    waits = points["load_sweep"].wait_mean_s.sel(policy="PSF", rate=32).values
    usual = waits.std(ddof=1) / waits.mean()
    assert ROWS[0] == "N01"
    np.testing.assert_allclose(found.influence[:, 0].std(ddof=1), usual, rtol=0.02)
    expected = usual**2 * (1 / 40 + 1 / 100) + (0.01 / np.sqrt(12) / PAPER[0]) ** 2
    np.testing.assert_allclose(found.covariance[0, 0], expected, rtol=0.04)


def test_the_distance_counts_that_rows_err_together():
    rng = np.random.default_rng(0)
    common = rng.normal(size=(500, 1)) + 0.1 * rng.normal(size=(500, len(ROWS)))
    together = Comparison(np.full(len(ROWS), 0.1), common)
    apart = Comparison(np.resize([0.1, -0.1], len(ROWS)), common)
    assert together.rms == apart.rms
    assert together.paired_chi_square < 0.2 * apart.paired_chi_square


def test_requests_that_no_engine_could_serve_are_shortened():
    requests = qba.Requests(arrival_s=[0, 1, 2], prompt_tokens=[6000, 3000, 10], response_tokens=[10, 5000, 9000])
    assert servable(requests, qba.EngineConfig()).prompt_tokens.tolist() == [5734, 3000, 10]
    preempt = servable(requests, qba.EngineConfig(on_overflow="preempt"))
    assert preempt.prompt_tokens.tolist() == [5734, 3000, 10]
    assert preempt.response_tokens.tolist() == [10, 5000, 8182]
    reserved = servable(requests, qba.EngineConfig(kv_projection="reserve-all"))
    assert (reserved.prompt_tokens + reserved.response_tokens).max() <= 5734 and reserved.response_tokens.min() >= 1
    np.testing.assert_array_equal(reserved.true_long, requests.true_long)


# --- families ---------------------------------------------------------------------------------------------------------


def test_a_family_has_its_parameters_by_name():
    family = Family(
        response=LogNormal(462, cv=1.0, at_most=5000), free=("response.cv", "response.at_most", "horizon_s")
    )
    moved = family.at(**{"response.cv": 1.2, "horizon_s": 50})
    assert (moved.value("response.cv"), moved.value("response.at_most"), moved.horizon_s) == (1.2, 5000, 50)
    assert qba.synthetic(32, 0, **moved.workload()).response_tokens.max() <= 5000
    for wrong in ("response.share", "prompt.cv", "response.at_most", "rate"):
        with pytest.raises(InputError, match=f"no parameter '{wrong}'"):
            Family(free=(wrong,))


def test_the_base_family_is_the_default_workload():
    mine, default = qba.synthetic(32, 3, **FAMILIES[BASE].workload()), qba.synthetic(32, 3)
    for column in ("arrival_s", "prompt_tokens", "response_tokens"):
        np.testing.assert_array_equal(getattr(mine, column), getattr(default, column))


def test_a_uniform_law_is_searched_where_its_lengths_are_positive():
    family = Family(Uniform(330, cv=0.5), free=("prompt.mean", "prompt.cv"))
    assert np.exp(family.ranges()[1, 1]) == pytest.approx(3**-0.5)


# --- the fit ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Family:
    """A workload that the "paper" was made with: the same seeds, so that the fit can be exact."""
    truth = Family(
        Exponential(320), LogNormal(455, cv=0.9), free=("prompt.mean", "response.mean", "response.cv"), horizon_s=20
    )
    points = compare(simulate_points(truth.workload(), FEW))
    papers = PAPER * np.exp(points.log_error)
    made = {name: replace(rows.SIMULATED[name], paper=float(paper)) for name, paper in zip(ROWS, papers)}
    monkeypatch.setattr(rows, "SIMULATED", rows.SIMULATED | made)
    return truth


def test_a_known_workload_is_found_again(known: Family):
    off = known.at(**{"prompt.mean": 300, "response.mean": 480, "response.cv": 1.0})
    found = fit(off, FEW, FEW)
    # At the truth the cost is 0, and one row off by its own standard error adds 1: what is left is the roughness of so few runs.
    assert found.cost < 0.5
    for name in known.free:
        assert found.family.value(name) == pytest.approx(known.value(name), rel=0.1), name
    same = profile(found, "response.cv", found.family.value("response.cv"), FEW)
    assert same.cost <= found.cost + 0.05
    assert profile(found, "response.cv", 1.5, FEW).cost > found.cost + 1


def test_rows_that_a_fit_is_not_shown_have_no_weight(known: Family):
    found = fit(replace(known, free=("response.mean",)), FEW, FEW, leave_out=("N07", "N08"))
    assert [name for name, weight in zip(ROWS, found.weights) if not weight] == ["N07", "N08"]
    with pytest.raises(InputError, match="no row 'N16' to leave out"):
        fit(known, FEW, FEW, leave_out=("N16",))


def test_a_method_without_derivatives_finds_no_better_minimum(known: Family):
    off = replace(known.at(**{"response.mean": 470}), free=("prompt.mean", "response.mean"))
    mine, other = by_another_optimiser(off, FEW)
    assert mine <= other + 0.1


def test_errors_of_parameters_are_those_of_weighted_least_squares():
    rng = np.random.default_rng(1)
    deviation = rng.uniform(0.02, 0.1, len(ROWS))
    independent = np.diag(deviation) @ np.linalg.qr(rng.normal(size=(len(ROWS), len(ROWS))))[0]
    slopes = rng.normal(size=(len(ROWS), 2))

    class Independent(Comparison):
        covariance = np.diag(deviation**2)

    found = Fit(
        Family(free=("prompt.mean", "response.mean")), slopes, 1 / deviation, Independent(deviation, independent), 0.0
    )
    usual = np.linalg.inv(slopes.T @ np.diag(deviation**-2) @ slopes)
    np.testing.assert_allclose(parameter_covariance(found), usual, rtol=1e-9)


def test_a_search_that_cannot_begin_is_refused():
    mixture = FAMILIES["exponential, mixture; horizon"].at(**{"response.share": 0.5, "response.ratio": 2})
    assert calibrate.Search(mixture, FEW, np.ones(len(ROWS)), {}).comparison(np.log([1, 1, 0.01, 0.5, 9, 10])) is None


# --- what is published ------------------------------------------------------------------------------------------------


def test_the_study_of_a_family_has_all_its_parts():
    study = calibration_study([BASE], seeds=2, refining_seeds=2, fresh_seeds=3, points=2, progress=False)
    assert study.attrs["examined"] == BASE and study.sizes["row"] == len(ROWS)
    assert (study.shown.sum("row") == [12, 11]).all()
    assert study.default_rms.sizes == {"set": 4}


def test_an_unknown_family_is_refused():
    with pytest.raises(InputError, match="no family 'nonsense'; there are exponential, lognormal; "):
        calibration_study(["nonsense"])


def test_the_published_calibration_belongs_to_this_code():
    study = load(PUBLISHED / "calibration.nc")
    default = compare(simulate_points(Family().workload(), FRESH_SEEDS))
    assert float(study.default_rms[0]) == pytest.approx(default.rms, rel=1e-9)
    assert set(study.family.values) == set(FAMILIES) and set(study.row.values) == set(ROWS)


def test_the_published_fits_are_better_than_where_they_began():
    study = load(PUBLISHED / "calibration.nc")
    assert float(study.cost_at_fit) <= float(study.cost_at_minimum) + 1
    assert (study.rms < 0.25).all()
