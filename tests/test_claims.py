"""The scorecard: how rows are judged, that all are there, and that the published one is what the datasets say."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from qba import claims, paths
from qba.claims.evidence import CLOSE, NOT_REPRODUCED, REPRODUCED, Statement, grade_number, number
from qba.claims.rows import CLAIMS
from qba.intervals import mean_interval
from qba.results import load

RNG = np.random.default_rng(5)


def by_seed(mean: float, spread: float = 1.0, seeds: int = 100, points: int = 1) -> xr.DataArray:
    values = RNG.standard_normal((points, seeds))
    values = (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, ddof=1, keepdims=True)
    return xr.DataArray(mean + spread * values, dims=("rate", "seed"), coords={"rate": range(points)})


def test_every_row_of_the_list_is_there_once():
    assert sorted(claim.id for claim in CLAIMS) == [f"N{i:02}" for i in range(1, 27)] + [
        f"S{i:02}" for i in range(1, 24)
    ]
    assert all(claim.text and claim.kind in ("number", "statement") for claim in CLAIMS)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (1.15, REPRODUCED),
        (0.85, REPRODUCED),
        (1.151, CLOSE),
        (0.849, CLOSE),
        (1.3, CLOSE),
        (1.31, NOT_REPRODUCED),
        (-1, NOT_REPRODUCED),
    ],
)
def test_numbers_are_graded_by_their_distance(value, status):
    assert grade_number(1e3 * value, 1e3) == status
    assert grade_number(-1e3 * value, -1e3) == status


def test_a_mean_has_its_usual_standard_error_and_a_distance_in_both_sides_errors():
    found = number(12.0, lambda mean: mean, by_seed(10, spread=3, seeds=25).isel(rate=0))
    assert found.reproduced == pytest.approx(10)
    assert found.standard_error == pytest.approx(3 / 5)
    # the paper: 100 seeds of the same relative spread, 0.3 · 12 / 10
    assert found.combined_se_distance == pytest.approx(-2 / np.hypot(0.6, 0.36))
    half = stats.t.ppf(0.975, 24) * 0.6
    assert (found.low, found.high) == (pytest.approx(10 - half), pytest.approx(10 + half))
    single = number(12.0, lambda mean: mean, by_seed(10, seeds=25).isel(rate=0)[:1])
    assert (single.standard_error, single.combined_se_distance, single.low, single.high) == (None, None, None, None)


def test_a_ratio_of_paired_means_has_the_delta_methods_standard_error():
    a, b = by_seed(10, 1, 400).isel(rate=0), by_seed(5, 1, 400).isel(rate=0)
    a = a + 0.8 * (b - 5)  # correlated, as paired replications are
    found = number(2.0, lambda x, y: x / y, a, b)
    linear = (a - 10) / 5 - 10 / 25 * (b - 5)
    assert found.standard_error == pytest.approx(float(linear.std(ddof=1)) / 20, rel=0.01)


def test_intervals_are_students():
    mean, low, high = mean_interval(by_seed(4, 2, 9).isel(rate=0))
    assert float(mean) == pytest.approx(4)
    half = stats.t.ppf(0.975, 8) * 2 / 3
    assert (float(mean - low), float(high - mean)) == (pytest.approx(half), pytest.approx(half))
    assert np.isnan(mean_interval(xr.DataArray([1.0], dims="seed"))[1])


def test_an_order_must_be_significant_in_pairs_at_every_point():
    base = by_seed(10, 5, points=10)
    shift = xr.DataArray(np.full(10, 0.5), dims="rate", coords={"rate": range(10)})
    noise = by_seed(0, 1, points=10)
    above = base + shift + noise  # half a unit: five standard errors in pairs, far within the spread of each
    assert Statement().below("x", base, above).finding().status == REPRODUCED
    assert Statement().below("x", above, base).finding().status == NOT_REPRODUCED
    two_points_off = above.where(above.rate >= 2, base)
    found = Statement().below("x", base, two_points_off).finding()
    assert found.status == CLOSE
    assert found.reproduced == "x: 8 of 10" and found.note == "x: not at rate 0, rate 1"
    assert Statement().below("x", base, above.where(above.rate >= 3, base)).finding().status == NOT_REPRODUCED
    insignificant = base + 0.1 * shift + noise
    assert Statement().below("x", base, insignificant).finding().status == NOT_REPRODUCED


def test_a_clear_difference_is_also_a_large_one():
    low, noise = by_seed(10, 1), by_seed(0, 0.1)
    assert Statement().clearly_below("x", low, low * 1.16 + noise).finding().status == REPRODUCED
    assert Statement().clearly_below("x", low, low * 1.14 + noise).finding().status == NOT_REPRODUCED
    assert Statement().clearly_below("x", low, low * 1.16 + 200 * noise).finding().status == NOT_REPRODUCED


def test_closeness_is_graded_like_a_number_at_the_worst_point():
    reference = by_seed(10, 1, points=3)
    for factor, status in ((1.1, REPRODUCED), (0.8, CLOSE), (1.29, CLOSE), (0.6, NOT_REPRODUCED)):
        values = reference * xr.DataArray([1, factor, 1], dims="rate", coords={"rate": range(3)})
        assert Statement().close("x", values, reference).finding().status == status


def test_a_statement_is_as_good_as_its_weakest_part():
    yes, no = xr.DataArray([True] * 5), xr.DataArray([True] * 4 + [False])
    assert Statement().holds("a", yes).holds("b", no).holds("c", yes).finding().status == CLOSE
    assert Statement().holds("a", ~yes).holds("b", yes).finding("Why.").status == NOT_REPRODUCED


# --- the comparisons of a statement ----------------------------------------------------------------------------------


def test_an_order_is_shown_at_its_tightest_point_with_its_paired_interval():
    base, noise = by_seed(10, 5, points=3), by_seed(0, 1, points=3)
    shift = xr.DataArray([2.0, 0.5, 1.0], dims="rate", coords={"rate": range(3)})
    [found] = Statement().below("x", base, base + shift + noise).finding().comparisons
    half = stats.t.ppf(0.975, 99) / 10
    assert (found.text, found.where, found.unit) == ("x", "rate 1", "s")
    assert [found.value, found.low, found.high] == pytest.approx([0.5, 0.5 - half, 0.5 + half])
    assert found.margin == pytest.approx(0.5 / half - 1) and found.seeds == 44  # of the power tables
    [failed] = Statement().below("x", base + shift + noise, base).finding().comparisons
    assert failed.where == "rate 0" and failed.value == pytest.approx(-2) and failed.margin < 0


def test_clear_and_close_are_shown_as_relative_differences():
    low, factor = by_seed(10, 1, points=2), xr.DataArray([1.5, 1.2], dims="rate", coords={"rate": range(2)})
    noise = by_seed(0, 0.5, points=2)
    [clear] = Statement().clearly_below("x", low, low * factor + noise).finding().comparisons
    assert (clear.where, clear.unit, clear.seeds) == ("rate 1", "%", None)
    assert clear.value == pytest.approx(20) and clear.low < 20 < clear.high
    assert clear.margin == pytest.approx(2 * 5 / (clear.high - clear.low))
    [close] = Statement().close("x", low * factor + noise, low).finding().comparisons
    assert close.where == "rate 0" and close.value == pytest.approx(50) and close.margin < 0
    model = xr.DataArray([1.0, 1.1], dims="rate", coords={"rate": range(2)})
    [exact] = Statement().close("x", model, model / model).finding().comparisons
    assert exact.value == pytest.approx(10) and (exact.low, exact.high, exact.margin) == (None, None, None)


def test_the_tightest_comparison_comes_first_and_stands_in_the_table():
    base, noise = by_seed(10, 5), by_seed(0, 1)
    found = Statement().below("sure", base, base + 5 + noise).below("barely", base, base + 0.3 + noise).finding()
    assert [comparison.text for comparison in found.comparisons] == ["barely", "sure"]
    row = {"kind": "statement", "comparisons": [asdict(comparison) for comparison in found.comparisons]}
    assert claims.row_interval(row) == "barely (rate 0): 0.1…0.5 s"
    assert claims.comparison_text(row["comparisons"][0]) == "barely (rate 0): 0.3 s [0.1…0.5], 119 seeds decide it"
    assert claims.row_interval({"kind": "statement", "comparisons": []}) == ""
    assert claims.row_interval({"kind": "number", "low": -50.24, "high": -45.91}) == "-50.2…-45.9"


def test_without_scatter_there_is_no_order():
    same = xr.DataArray([[1.0, 1.0]], dims=("rate", "seed"), coords={"rate": [30]})
    [found] = Statement().below("x", same, same).finding().comparisons
    assert (found.value, found.low, found.margin, found.seeds) == (0, None, None, None)


# --- the published scorecard -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> list[claims.Row]:
    return claims.read_scorecard(paths.repository() / "results")


def test_the_published_scorecard_is_what_the_published_datasets_say(published):
    folder = paths.repository() / "results"
    fresh = claims.scorecard({name: load(folder / f"{name}.nc") for name in claims.DATASETS})
    assert json.loads(json.dumps(fresh)) == published
    assert len(published) == 49


def test_the_readme_shows_the_published_scorecard(published):
    readme = (paths.repository() / "README.md").read_text(encoding="utf-8")
    assert claims.insert_table(readme, published) == readme
    assert all(f"| {row['id']} |" in readme for row in published)


def test_rows_that_the_machine_cannot_check_say_so(published):
    waiting = {row["id"] for row in published if row["status"] == claims.NEEDS_DATA}
    assert waiting == {f"N{i}" for i in range(18, 27)} | {"S22"}
    assert all("stand-in" in row["note"] for row in published if row["id"] in waiting)


# How to make each statement's evidence say the opposite: the dataset, and what is done to it.


def relabel(*policies: str):
    """The policies' columns change their names, in the order of the dataset (FCFS, PSF, AA, QBA; FCFS, AA, QBA in the sensitivity study)."""
    return lambda d: d.assign_coords(policy=list(policies))


def reverse(dim: str):
    """The values along an axis in the opposite order."""
    return lambda d: d.isel({dim: slice(None, None, -1)}).assign_coords({dim: d[dim]})


def flat(dim: str):
    """The first values all along an axis."""
    return lambda d: xr.concat([d.isel({dim: 0}, drop=True)] * d.sizes[dim], d[dim]).transpose(*d.dims)


def grow(policy: str, dim: str):
    """One policy's values rise along an axis, tenfold at its end."""

    def change(d: xr.Dataset) -> xr.Dataset:
        factor = xr.DataArray(np.linspace(1, 10, d.sizes[dim]), coords={dim: d[dim]})
        return d.map(lambda v: v.where(v.policy != policy, v * factor) if "policy" in v.dims else v)

    return change


OPPOSITES = {
    "S01": ("theory", relabel("PSF", "FCFS", "AA", "QBA")),
    "S02": ("theory", relabel("FCFS", "QBA", "AA", "PSF")),
    "S03": ("load_sweep", relabel("PSF", "FCFS", "AA", "QBA")),
    "S04": ("load_sweep", relabel("AA", "PSF", "FCFS", "QBA")),
    "S05": ("load_sweep", relabel("QBA", "PSF", "AA", "FCFS")),
    "S06": ("load_sweep", relabel("PSF", "FCFS", "AA", "QBA")),
    "S07": ("load_sweep", relabel("FCFS", "AA", "PSF", "QBA")),
    "S08": ("load_sweep", relabel("PSF", "FCFS", "AA", "QBA")),
    "S09": ("load_sweep", relabel("PSF", "FCFS", "AA", "QBA")),
    "S10": ("sensitivity", flat("quota")),
    "S11": ("sensitivity", reverse("quota")),
    "S12": ("sensitivity", relabel("QBA", "AA", "FCFS")),
    "S13": ("sensitivity", reverse("aging_quantile")),
    "S14": ("sensitivity", reverse("aging_quantile")),
    "S15": ("prediction_errors", reverse("error_rate")),
    "S16": ("prediction_errors", flat("error_rate")),
    "S17": ("prediction_errors", reverse("error_rate")),
    "S18": ("prediction_errors", grow("PSF", "error_rate")),
    "S19": ("prediction_errors", flat("error_rate")),
    "S20": ("prediction_errors", reverse("error_rate")),
    "S21": ("prediction_errors", grow("AA", "error_rate")),
    "S23": ("promotion_delay", lambda d: d.assign(before_due=d.before_due + 99)),
}


@pytest.fixture(scope="module")
def results() -> dict[str, xr.Dataset]:
    folder = paths.repository() / "results"
    return {name: load(folder / f"{name}.nc") for name in claims.DATASETS}


@pytest.mark.parametrize("id", OPPOSITES)
def test_each_statement_can_fail(id, results):
    [claim] = [claim for claim in CLAIMS if claim.id == id]
    name, change = OPPOSITES[id]
    assert claim.check(results | {name: change(results[name])}).status == NOT_REPRODUCED


def test_the_statement_on_starvation_can_hold(results):
    [claim] = [claim for claim in CLAIMS if claim.id == "S23"]
    bounded = results["promotion_delay"].assign(held_back=xr.zeros_like(results["promotion_delay"].held_back))
    assert claim.check(results | {"promotion_delay": bounded}).status == REPRODUCED


def test_every_number_and_every_paired_statement_has_its_interval(results):
    rows = claims.scorecard(results)
    for row in rows:
        if row["kind"] == "number" and row["id"] not in ("N24", "N25"):  # a range, a count
            assert row["low"] < row["reproduced"] < row["high"], row["id"]
        if row["id"] == "N24":
            assert (
                row["low"] < float(row["reproduced"][:4]) + 0.005 and row["high"] > float(row["reproduced"][5:]) - 0.005
            )
        for comparison in row["comparisons"]:
            value, low, high = (comparison[name] for name in ("value", "low", "high"))
            assert row["id"] == "S02" or low < value < high, comparison  # the model has no replications
            assert comparison["margin"] is None or (comparison["margin"] > 0 or row["status"] != REPRODUCED)
    without = {row["id"] for row in rows if row["kind"] == "statement" and not row["comparisons"]}
    assert without == {"S01", "S04", "S19", "S22", "S23"}  # conditions, a number, counts
    json.dumps(rows, allow_nan=False)


def test_numbers_follow_their_datasets(results):
    doubled = {name: d.map(lambda v: 2 * v if v.dtype.kind == "f" else v) for name, d in results.items()}
    for claim in CLAIMS:
        if claim.kind == "number" and claim.unit == "s":
            assert claim.check(doubled).reproduced == pytest.approx(2 * claim.check(results).reproduced), claim.id


def test_the_papers_numbers_are_these():
    papers = [claim.paper for claim in sorted(CLAIMS, key=lambda c: c.id) if claim.kind == "number"]
    assert papers == [
        *(0.83, 1.24, 11.10, 1.42, 3.44, 7.64, 7.03, 1.13, 7.59, 9.45, 0.91, 17.29, 1.92, 5.23, 5.27, 70, 59),
        *(-31, -18, 0.77, 2.10, 1.45, 2.47e4, "0.89–0.91", 0, 2.9),
    ]
