"""Intervals, the studies of horizon and number of seeds, and their tables."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from small_results import make_azure_2023, make_azure_standin

import qba
from qba import azure, precision, tables
from qba.errors import InputError
from qba.intervals import (
    function_interval,
    jackknife,
    mean_interval,
    median_interval,
    seeds_for_width,
    seeds_to_decide,
    student,
)
from qba.precision import horizon_study, seeds_study, settling
from qba.results import load, save

RATES, HORIZONS = [20.0, 60.0], [5.0, 10.0, 40.0]


@pytest.fixture(scope="module")
def lasting() -> xr.Dataset:
    return horizon_study(RATES, HORIZONS, seeds=20, simulated_s=200, progress=False)


@pytest.fixture(scope="module")
def scatter() -> xr.Dataset:
    return seeds_study(34, 30, [5, 30, 200], progress=False)


def draws(*shape: int, dims: tuple[str, ...] = ("seed",), seed: int = 1) -> xr.DataArray:
    return xr.DataArray(np.random.default_rng(seed).gamma(2.0, 1.0, shape), dims=dims)


# --- intervals --------------------------------------------------------------------------------------------------------


def test_the_jackknife_of_a_mean_is_students_interval():
    values = draws(3, 25, dims=("rate", "seed"))
    for ours, students in zip(function_interval(lambda mean: mean, values), mean_interval(values), strict=True):
        np.testing.assert_allclose(ours, students, rtol=1e-12)


def test_the_jackknife_leaves_out_one_replication_of_all_columns():
    a, b = draws(12), draws(12, seed=2)
    value, error = jackknife(lambda x, y: x / y, a, b)
    left_out = [a.values[np.arange(12) != i].mean() / b.values[np.arange(12) != i].mean() for i in range(12)]
    assert float(value) == pytest.approx(float(a.mean() / b.mean()))
    assert float(error) == pytest.approx(np.sqrt(11 / 12 * np.sum((left_out - np.mean(left_out)) ** 2)))


def test_pairing_narrows_the_interval_of_what_two_columns_share():
    common, noise = draws(200), draws(200, seed=2)
    paired = function_interval(lambda x, y: x / y, 2 * common + 0.1 * noise, common)
    crossed = function_interval(lambda x, y: x / y, 2 * common + 0.1 * noise, draws(200, seed=3))
    assert float(paired[2] - paired[1]) < 0.1 * float(crossed[2] - crossed[1])


def test_one_replication_has_no_interval():
    assert all(np.isnan(end) for end in function_interval(lambda mean: mean, draws(1))[1:])


@pytest.mark.parametrize("n", [6, 20, 99, 100])
def test_a_medians_interval_lies_between_order_statistics_that_cover(n: int):
    values = draws(n, dims=("window",))
    median, low, high = median_interval(values)
    assert float(median) == np.median(values)
    ordered = np.sort(values.values)
    below, above = np.searchsorted(ordered, low), np.searchsorted(ordered, high)
    # The median lies between the i-th and the j-th smallest if i to j - 1 of n values are below it.
    assert stats.binom.cdf(above, n, 0.5) - stats.binom.cdf(below, n, 0.5) >= 0.95
    if n > 6:  # and one step nearer on both sides would not do
        assert stats.binom.cdf(above - 1, n, 0.5) - stats.binom.cdf(below + 1, n, 0.5) < 0.95


def test_five_values_have_no_interval_of_the_median():
    assert all(np.isnan(end) for end in median_interval(draws(5, dims=("window",)))[1:])


@pytest.mark.parametrize(("variation", "width"), [(0.7, 0.05), (0.1, 0.05), (0.01, 0.05), (2.0, 0.3)])
def test_no_fewer_seeds_give_the_width(variation: float, width: float):
    n = int(seeds_for_width(variation, width))
    assert student(n) * variation / np.sqrt(n) <= width
    assert n == 2 or student(n - 1) * variation / np.sqrt(n - 1) > width


@pytest.mark.parametrize(("effect", "needed"), [(1.0, 13), (0.5, 44), (0.2, 265)])
def test_seeds_that_decide_are_those_of_the_power_tables(effect: float, needed: int):
    """One-sample t test, two-sided 5 %, power 90 % (Cohen 1988; as G*Power computes them)."""
    assert seeds_to_decide(effect, 1.0) == needed
    assert seeds_to_decide(-3 * effect, 3.0) == needed


def test_that_many_seeds_decide_nine_times_in_ten():
    n = int(seeds_to_decide(0.5, 1.0))
    drawn = xr.DataArray(np.random.default_rng(3).normal(0.5, 1.0, (4000, n)), dims=("trial", "seed"))
    decided = float((mean_interval(drawn)[1] > 0).mean())
    assert decided == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 4000))


def test_no_difference_is_never_decided_and_one_without_scatter_at_once():
    assert seeds_to_decide(0.0, 1.0) == np.inf and seeds_to_decide(1.0, 0.0) == 2
    assert np.isnan(seeds_to_decide(np.nan, 1.0)) and np.isnan(seeds_for_width(np.nan, 0.05))
    large = seeds_to_decide(0.1, 1.0)  # the normal's, within a few of Student's
    assert large == pytest.approx((1.95996 + 1.28155) ** 2 * 100, abs=3)


# --- horizon ----------------------------------------------------------------------------------------------------------


def test_a_longer_run_goes_on_where_a_shorter_one_ends():
    short, long = (qba.synthetic(rate=30, seed=4, horizon_s=h) for h in (10, 40))
    for column in ("arrival_s", "prompt_tokens", "response_tokens"):
        np.testing.assert_array_equal(getattr(short, column), getattr(long, column)[: len(short)])


def test_long_horizons_get_fewer_seeds(lasting):
    assert lasting.replications.values.tolist() == [20, 20, 16]


def test_the_study_holds_means_and_intervals_of_the_sweep(lasting):
    table = qba.sweep(list(precision.POLICIES), RATES, 20, horizon_s=[10.0], progress=False).squeeze("horizon_s")
    here = lasting.sel(horizon_s=10)
    for name in precision.WAITS:
        for label, expected in zip(("value", "low", "high"), mean_interval(table[name]), strict=True):
            np.testing.assert_allclose(here[name].sel(estimate=label).transpose("policy", "rate"), expected)
    mean = table.wait_mean_s.mean("seed")
    relative = here.wait_relative.sel(estimate="value")
    np.testing.assert_allclose(relative.sel(policy="QBA"), mean.sel(policy="QBA") / mean.sel(policy="FCFS"))
    fcfs, psf, aging = (mean.sel(policy=name) for name in ("FCFS", "PSF", "QBA"))
    np.testing.assert_allclose(here.kept_gain.sel(estimate="value"), (fcfs - aging) / (fcfs - psf))


def test_growth_is_the_exponent_over_the_seeds_that_both_have(lasting):
    tables_ = [
        qba.sweep([qba.FCFS()], 60, 16, horizon_s=[h], progress=False).wait_mean_s.mean("seed").item() for h in (10, 40)
    ]
    growth = lasting.growth.sel(policy="FCFS", rate=60, estimate="value")
    assert float(growth.sel(horizon_s=40)) == pytest.approx(np.log(tables_[1] / tables_[0]) / np.log(4))
    assert np.isnan(growth.sel(horizon_s=5))


def test_under_overload_waits_grow_as_the_capacity_says(lasting):
    """Under FCFS a request that arrives at time t waits (λ / capacity − 1) t, on average half of that at the horizon."""
    wait = lasting.wait_mean_s.sel(policy="FCFS", rate=60, horizon_s=40, estimate="value").item()
    capacity = lasting.capacity.sel(policy="FCFS", estimate="value").item()
    assert 60 / (1 + 2 * wait / 40) == pytest.approx(capacity, rel=0.05)
    assert float(lasting.growth.sel(policy="FCFS", rate=60, horizon_s=40, estimate="value")) == pytest.approx(
        1, abs=0.1
    )


def test_without_overload_there_is_no_capacity():
    quiet = horizon_study([10.0], [5.0, 20.0], seeds=4, progress=False)
    assert quiet.capacity.isnull().all()
    assert set(settling(quiet, 5.0).values.flat) == {"at capacity"}


def test_settling_is_told_by_load_and_mean():
    coords = {"estimate": ["value", "low", "high"], "policy": ["FCFS"], "rate": [20.0, 25.0, 30.0, 40.0]}
    coords["horizon_s"] = [100.0, 400.0]
    waits = [[0.9, 1.0], [0.8, 1.0], [2.0, 5.0], [5.0, 20.0]]
    study = xr.Dataset(
        {
            "wait_mean_s": (tuple(coords), np.array([[waits]] * 3)),
            "capacity": (("estimate", "policy"), [[30.0], [29.0], [31.0]]),
        },
        coords,
    )
    verdicts = ["steady", "not yet steady", "at capacity", "no steady state"]
    assert settling(study).sel(policy="FCFS").values.tolist() == verdicts
    with pytest.raises(InputError, match="no horizon_s 50 in the study; there are 100, 400"):
        settling(study, 50)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizons": [10, 5]}, r"horizons = \[10.0, 5.0\], but they must rise"),
        ({"horizons": []}, "must rise and be at least one"),
        ({"seeds": 1}, "seeds = 1, but it must be a whole number of at least 2"),
        ({"simulated_s": 0}, "simulated_s = 0, but it must be a finite number above 0"),
    ],
)
def test_a_horizon_study_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        horizon_study(**({"rates": [30], "horizons": [5, 10], "progress": False} | options))


# --- number of seeds --------------------------------------------------------------------------------------------------


def test_half_widths_are_those_of_the_intervals(scatter):
    waits = qba.sweep(list(precision.POLICIES), 34, 30, progress=False).squeeze("rate").wait_mean_s
    here = scatter.half_width.sel(statistic="wait_mean_s", seeds=30)
    mean, low, high = mean_interval(waits)
    np.testing.assert_allclose(here.sel(quantity="mean"), (high - low) / 2 / mean)
    ratio, low, high = function_interval(lambda x, y: x / y, waits, waits.sel(policy="FCFS", drop=True))
    paired = here.sel(quantity="ratio to FCFS, same seeds", policy=["PSF", "AA", "QBA"])
    # To first order the same; the jackknife also sees the ratio's curvature, which is a per cent here.
    np.testing.assert_allclose(paired, ((high - low) / 2 / ratio).sel(policy=paired.policy), rtol=0.05)
    assert here.sel(policy="FCFS", quantity="ratio to FCFS, same seeds").isnull()


def test_half_widths_shrink_with_the_root_of_the_number(scatter):
    part = scatter.half_width.sel(statistic="wait_p99_s", policy="QBA", quantity="mean")
    assert float(part.sel(seeds=5) / part.sel(seeds=200)) == pytest.approx(
        student(5) / student(200) * np.sqrt(200 / 5), rel=1e-12
    )


def test_pairing_saves_seeds_and_orders_go_either_way(scatter):
    wait = scatter.sel(statistic="wait_mean_s")
    same, other = (wait.seeds_for_width.sel(quantity=f"ratio to FCFS, {p}") for p in precision.PAIRINGS)
    assert (same < 0.2 * other).sel(policy=["PSF", "AA", "QBA"]).all()
    decided = wait.seeds_to_decide
    xr.testing.assert_equal(
        decided.sel(policy="AA", other="QBA", drop=True), decided.sel(policy="QBA", other="AA", drop=True)
    )
    assert decided.sel(policy="PSF", other="PSF").isnull().all()
    assert decided.sel(policy="FCFS", other="PSF", pairing="same seeds") <= decided.sel(
        policy="FCFS", other="PSF", pairing="other seeds"
    )


def test_coverage_is_nominal_for_normal_values_and_lower_for_few_skewed_ones():
    rng = np.random.default_rng(8)
    columns = np.stack([rng.normal(10, 1, 2000), rng.lognormal(0, 1.5, 2000)])
    values = xr.DataArray(
        columns[:, None], dims=("statistic", "policy", "seed"), coords={"statistic": ["normal", "skewed"]}
    )
    coverage = precision._coverage(values, [10, 100]).squeeze("policy")
    error = np.sqrt(0.95 * 0.05 / precision.RESAMPLES)
    np.testing.assert_allclose(coverage.sel(statistic="normal"), 0.95, atol=4 * error)
    assert float(coverage.sel(statistic="skewed", seeds=10)) < 0.95 - 4 * error


def test_a_seeds_study_that_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="counts = 1, but it must be a whole number of at least 2"):
        seeds_study(30, 5, [10, 1], progress=False)
    with pytest.raises(InputError, match="seeds = 1, but"):
        seeds_study(30, 1, progress=False)


# --- files and tables -------------------------------------------------------------------------------------------------


def test_both_studies_are_small_labelled_files(lasting, scatter, tmp_path):
    for name, study in (("horizon", lasting), ("precision", scatter)):
        path = save(study, tmp_path / f"{name}.nc", parameters={})  # refuses a variable without unit or name
        assert path.stat().st_size < 100_000
        assert load(path).identical(load(path)) and set(load(path)) == set(study)
    assert lasting.wait_p99_s.attrs == {"units": "s", "long_name": "P99 waiting time"}


def test_tables_of_the_studies_show_their_numbers(lasting, scatter):
    text = tables.horizon_text(lasting, 10.0)
    assert "seeds: 20 to 5 s, 20 to 10 s, 16 to 40 s" in text
    assert text.count("no steady state") == 4 and text.count("W at 40 s") == 1
    value, low, high = lasting.wait_mean_s.sel(policy="QBA", rate=60, horizon_s=10).values
    assert f"{value:.2f} [{low:.2f}…{high:.2f}]" in text
    needed = scatter.sel(statistic="wait_p99_s").seeds_to_decide.sel(policy="PSF", other="QBA")
    counts = [f"{int(needed.sel(pairing=pairing)):,}" for pairing in precision.PAIRINGS]
    tail = tables.seeds_text(scatter).partition("P99 waiting time")[2]
    assert ["PSF", "or", "QBA", "lower", *counts] in [line.split() for line in tail.splitlines()]
    assert tables._count(np.inf) == ">10,000" and tables._count(np.nan) == "-"


def test_table2_has_intervals_over_windows():
    study = make_azure_standin(windows=30)
    found, plain = tables.table2_intervals(study), azure.table2(study)
    for name in ("wait_mean_s", "wait_change", "wait_p99_true_long_s", "batch_utilization", "interarrival_scv"):
        np.testing.assert_allclose(found[name].sel(estimate="value"), plain[name])
        assert (found[name].sel(estimate="low") <= plain[name] + 1e-12).all()
    _, low, high = median_interval(study.wait_p99_true_long_s)
    np.testing.assert_array_equal(found.wait_p99_true_long_s.sel(estimate="high"), high)
    text = tables.table2_text(study)
    psf = found.sel(policy="PSF")
    assert f"{psf.wait_mean_s.values[1]:.3f}…{psf.wait_mean_s.values[2]:.3f}" in text
    assert f"{psf.wait_p99_true_long_s.values[1]:.2f}…{psf.wait_p99_true_long_s.values[2]:.2f}" in text
    assert tables.table2_text(make_azure_2023()).count("long by") == 4
    with pytest.raises(InputError, match="FCFS is not among the policies"):
        tables.table2_intervals(study.sel(policy=["PSF", "QBA"]))
