"""Service moments and promoted fractions, against small populations that can be counted by hand."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qba.errors import InputError
from qba.moments import PromotedFraction, ServiceMoments

probabilities = st.floats(0, 1)
times = st.floats(0.01, 10)


@st.composite
def moments(draw) -> ServiceMoments:
    """Any two classes: shares, means, and second moments of a squared coefficient of variation from 0 to 4."""
    short, long = draw(times), draw(times)
    return ServiceMoments(
        draw(probabilities),
        short,
        short**2 * (1 + draw(st.floats(0, 4))),
        long,
        long**2 * (1 + draw(st.floats(0, 4))),
    )


def test_moments_of_a_counted_run():
    # Service times: shorts 1, 2, 3 s and a long of 6 s.
    run = ServiceMoments.from_times([0, 1, 2, 4], [1, 3, 5, 10], [False, False, False, True])
    assert run.short_share == 0.75
    assert (run.short_mean_s, run.short_square_s2) == (2, pytest.approx(14 / 3))
    assert (run.long_mean_s, run.long_square_s2) == (6, 36)
    assert run.mean_s == pytest.approx(3)
    assert run.square_s2 == pytest.approx(12.5)
    assert run.scv == pytest.approx(12.5 / 9 - 1)


def test_moments_match_numpy_over_all_requests():
    rng = np.random.default_rng(7)
    start, service, long = np.sort(rng.uniform(0, 50, 400)), rng.gamma(2, 0.3, 400), rng.random(400) < 0.15
    run = ServiceMoments.from_times(start, start + service, long)
    assert run.mean_s == pytest.approx(service.mean(), rel=1e-12)
    assert run.scv == pytest.approx(service.var() / service.mean() ** 2, rel=1e-10)


@pytest.mark.parametrize(("labels", "share"), [([False, False], 1), ([True, True], 0)])
def test_a_run_of_one_class_keeps_its_moments_and_gives_the_other_none(labels, share):
    run = ServiceMoments.from_times([0, 0], [1, 3], labels)
    assert run.short_share == share
    assert (run.mean_s, run.square_s2) == (2, 5)
    assert min(run.short_mean_s, run.long_mean_s) == 0


def test_constant_service_times_pass_despite_their_rounding():
    run = ServiceMoments.from_times(np.zeros(30), np.full(30, 0.1), np.arange(30) % 3 == 0)
    assert run.scv == pytest.approx(0, abs=1e-12)


def test_prediction_errors_give_the_moments_of_the_relabelled_population():
    # 80 shorts of which 8 are predicted long, 20 longs of which 5 are predicted short, flips independent of the length.
    short = np.tile([1.0, 2.0, 3.0, 4.0], 20)
    long = np.tile([8.0, 10.0, 12.0, 14.0, 20.0], 4)
    true_long = np.repeat([False, True], [80, 20])
    flipped = np.concatenate([np.arange(80) < 8, np.arange(20) < 5])
    service = np.concatenate([short, long])
    true = ServiceMoments.from_times(np.zeros(100), service, true_long)
    counted = ServiceMoments.from_times(np.zeros(100), service, true_long ^ flipped)
    predicted = true.predicted(short_to_long=0.1, long_to_short=0.25)
    assert astuple(predicted) == pytest.approx(astuple(counted), rel=1e-12)


@given(moments())
def test_a_perfect_predictor_changes_nothing_and_an_inverted_one_swaps_the_classes(true):
    same, swapped = true.predicted(), true.predicted(1, 1)
    p = true.short_share
    assert same.short_share == pytest.approx(p)
    assert swapped.short_share == pytest.approx(1 - p)
    if 1e-9 < p < 1 - 1e-9:
        assert same.short_mean_s == pytest.approx(true.short_mean_s)
        assert same.long_square_s2 == pytest.approx(true.long_square_s2)
        assert swapped.short_square_s2 == pytest.approx(true.long_square_s2)
        assert swapped.long_mean_s == pytest.approx(true.short_mean_s)


@given(moments(), probabilities, probabilities)
def test_prediction_errors_leave_the_moments_of_all_requests_alone(true, short_to_long, long_to_short):
    predicted = true.predicted(short_to_long, long_to_short)
    assert predicted.mean_s == pytest.approx(true.mean_s)
    assert predicted.square_s2 == pytest.approx(true.square_s2)


@given(moments(), probabilities)
def test_a_predictor_that_knows_nothing_makes_the_classes_alike(true, long):
    predicted = true.predicted(long, 1 - long)
    if 1e-6 < long < 1 - 1e-6:
        assert predicted.short_share == pytest.approx(1 - long)
        assert predicted.short_mean_s == pytest.approx(predicted.long_mean_s)
        assert predicted.short_square_s2 == pytest.approx(predicted.long_square_s2)


def test_promoted_fraction_interpolates_clamps_and_says_where():
    fraction = PromotedFraction(load=[0.6, 0.8, 0.9], fraction=[0.1, 0.5, 0.3])
    load = np.array([0.2, 0.6, 0.65, 0.8, 0.85, 0.9, 0.99])
    np.testing.assert_allclose(fraction.at(load), [0.1, 0.1, 0.2, 0.5, 0.4, 0.3, 0.3], rtol=1e-12)
    assert fraction.extrapolated(load).tolist() == [True, False, False, False, False, False, True]


@pytest.mark.parametrize(
    ("load", "fraction", "message"),
    [
        ([0.6, 0.6], [0.1, 0.2], "load = .* must be finite and increase"),
        ([0.6, np.nan], [0.1, 0.2], "load = .* must be finite and increase"),
        ([0.6, 0.7], [0.1, 1.2], r"fraction\[1\] = 1.2"),
        ([0.6, 0.7], [-0.1, 0.2], r"fraction\[0\] = -0.1"),
        ([0.6, 0.7], [np.nan, 0.2], r"fraction\[0\] = nan"),  # FCFS runs have no such fraction
        ([0.6, 0.7], [0.1], "shapes"),
        ([], [], "at least one point"),
    ],
)
def test_bad_fractions_are_refused(load, fraction, message):
    with pytest.raises(InputError, match=message) as error:
        PromotedFraction(load, fraction)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("start", "finish", "long", "message"),
    [
        ([0, 1], [1, 1], [False, True], r"finish_s\[1\] = 1.0 and start_s\[1\] = 1.0"),
        ([0, np.nan], [1, 2], [False, True], r"start_s\[1\] = nan"),
        ([0, 1], [1, np.inf], [False, True], r"finish_s\[1\] = inf"),
        ([0, 1], [1, 2], [False], "shapes"),
        ([[0.0]], [[1.0]], [[True]], "columns"),
        ([], [], [], "at least one request"),
    ],
)
def test_bad_runs_are_refused(start, finish, long, message):
    with pytest.raises(InputError, match=message) as error:
        ServiceMoments.from_times(start, finish, long)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1.1, 1, 2, 1, 2), "short_share = 1.1"),
        ((0.5, 0, 2, 1, 2), "short_mean_s = 0"),
        ((0.5, 1, 2, -1, 2), "long_mean_s = -1"),
        ((0.5, 2, 3.9, 1, 2), "short_square_s2 = 3.9"),
        ((0.5, 1, 2, 2, float("nan")), "long_square_s2 = nan"),
    ],
)
def test_impossible_moments_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        ServiceMoments(*values)


@pytest.mark.parametrize("errors", [(-0.1, 0), (0, 1.5), (float("nan"), 0)])
def test_impossible_error_rates_are_refused(errors):
    with pytest.raises(InputError, match="short_to_long|long_to_short"):
        ServiceMoments(0.5, 1, 2, 1, 2).predicted(*errors)
