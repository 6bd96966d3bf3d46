"""The reduced M/G/n model: published and independently computed values, limits, and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qba
from qba.errors import InputError
from qba.moments import PromotedFraction, ServiceMoments
from qba.theory import (
    CLOSURES,
    Queue,
    erlang_b,
    erlang_c,
    fcfs_position,
    fcfs_wait,
    load,
    mean_waits,
    parallelism_formula,
    parallelism_matched,
    priority_waits,
    residual_wait,
    two_class_waits,
)

# The reference case: n = 16, λ = 32, 85 % shorts of mean .36 s and c² = .36, longs of mean .96 s and c² = .25.
REFERENCE = ServiceMoments(0.85, 0.36, 0.36**2 * 1.36, 0.96, 0.96**2 * 1.25)
EXPONENTIAL = ServiceMoments(0.5, 1, 2, 1, 2)
HALF = PromotedFraction([0.9], [0.5])


def constant(fraction: float) -> PromotedFraction:
    return PromotedFraction([0.9], [fraction])


def printed(value: float, digits: int):
    """Equal to all the digits given."""
    return pytest.approx(value, rel=0, abs=0.5000001 * 10**-digits)


classes = st.builds(
    lambda p, short, long, c_short, c_long: ServiceMoments(
        p, short, short**2 * (1 + c_short), long, long**2 * (1 + c_long)
    ),
    st.floats(0, 1),
    st.floats(0.01, 10),
    st.floats(0.01, 10),
    st.floats(0, 4),
    st.floats(0, 4),
)
servers_drawn = st.integers(1, 40)
loads_drawn = st.floats(0.01, 0.99)
fractions_drawn = st.floats(0, 1)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "offered", "waiting"),
    [
        (5, 4, 0.554112554113),
        (10, 8, 0.409180150796),
        (16, 12.8, 0.304883912930),
        (100, 90, 0.216940480906),
    ],
)
def test_erlang_c_values(servers, offered, waiting):
    assert erlang_c(servers, offered) == printed(waiting, 12)


def test_erlang_fractions():
    assert erlang_c(2, 1) == pytest.approx(1 / 3, rel=1e-15)
    assert erlang_c(3, 2) == pytest.approx(4 / 9, rel=1e-15)
    assert erlang_b(2, 1) == pytest.approx(1 / 5, rel=1e-15)  # (1/2) / (1 + 1 + 1/2)


@given(servers_drawn, st.floats(0.01, 30))
def test_erlang_b_is_the_truncated_poisson_law(servers, offered):
    terms = [offered**k / math.factorial(k) for k in range(servers + 1)]
    assert erlang_b(servers, offered) == pytest.approx(terms[-1] / sum(terms))


def test_davis_example():
    short, long = two_class_waits(4, EXPONENTIAL, 5)
    assert short == printed(0.184704185, 9)
    assert long == printed(0.923520924, 9)
    assert (short + long) / 2 == printed(0.554112554, 9)


def test_reference_case():
    queue = Queue(32, REFERENCE, 16)
    assert load(32, REFERENCE, 16) == pytest.approx(0.9)
    assert queue.short == (0.85, pytest.approx(0.612))
    assert residual_wait(32, REFERENCE, 16) == printed(0.01324846, 8)
    short, long = two_class_waits(32, REFERENCE, 16)
    assert short == printed(0.03414551, 8)
    assert long == printed(0.34145509, 8)
    waits = mean_waits(32, REFERENCE, 16, HALF, HALF)
    assert waits["FCFS"] == printed(0.13248457, 8)
    assert waits["PSF"] == printed(0.08024195, 8)


@pytest.mark.parametrize(
    ("closure", "at_two_fifths", "at_one_fifth"),
    [
        ("mixture", 0.10113900, 0.09069047),
        ("reclassify", 0.08790216, 0.08340433),
        ("three_class", 0.09126129, 0.08470633),
        ("conservation", 0.11252672, 0.09638433),  # exact rationals, W_S from the conservation law
    ],
)
def test_closures_of_the_reference_case(closure, at_two_fifths, at_one_fifth):
    waits = mean_waits([32], REFERENCE, 16, constant(0.4), constant(0.2), closure=closure)
    assert waits["AA"][0] == printed(at_two_fifths, 8)
    assert waits["QBA"][0] == printed(at_one_fifth, 8)


def test_every_closure_has_a_value_above():
    assert set(CLOSURES) == {"mixture", "reclassify", "three_class", "conservation"}


def test_conservation_closure_by_hand():
    # One server, λ = .3, p = .5, E[S] = 1 and 4: ρ_S = .15, ρ_L = .6, W0 = .3 · 17/2 = 2.55, FCFS 10.2.
    queue = Queue(0.3, ServiceMoments(0.5, 1, 2, 4, 32), 1)
    last, first = 2.55 / (0.85 * 0.25), 2.55 / 0.4
    long = 0.7 * last + 0.3 * first
    short = (0.75 * 10.2 - 0.6 * long) / 0.15
    assert CLOSURES["conservation"](queue, 0.3) == (pytest.approx(short), pytest.approx(long))
    assert fcfs_position(queue) == pytest.approx(0.4 / 1.25)
    assert CLOSURES["conservation"](queue, 0.32) == (pytest.approx(10.2), pytest.approx(10.2))


def test_each_policy_takes_its_own_fraction_at_the_load_of_its_rate():
    aged, promoted = PromotedFraction([0.6, 0.9], [0.2, 0.8]), PromotedFraction([0.6, 0.9], [0.5, 0.1])
    rates = np.array([24.0, 32.0])  # ρ = .675 and .9
    waits = mean_waits(rates, REFERENCE, 16, aged, promoted)
    position = (waits["AA"] - waits["PSF"]) / (waits["FCFS"] - waits["PSF"])
    np.testing.assert_allclose(position, [0.35, 0.8], rtol=1e-9)
    position = (waits["QBA"] - waits["PSF"]) / (waits["FCFS"] - waits["PSF"])
    np.testing.assert_allclose(position, [0.4, 0.1], rtol=1e-9)


def test_prediction_errors_by_hand():
    # p = .5, ε_SL = .2, ε_LS = .4: the predicted shorts are .4 true ones and .2 false ones.
    moments = ServiceMoments(0.5, 1, 2, 4, 32)
    rate = 0.3
    rho_short = rate * (0.4 * 1 + 0.2 * 4)
    rho = rate * 2.5
    residual = rate * 17 / 2
    short, long = residual / (1 - rho_short), residual / ((1 - rho_short) * (1 - rho))
    waits = mean_waits(rate, moments, 1, HALF, HALF, short_to_long=0.2, long_to_short=0.4)
    assert waits["PSF"] == pytest.approx(0.6 * short + 0.4 * long)
    assert waits["FCFS"] == pytest.approx(residual / (1 - rho))


def test_parallelism_formula():
    # M_safe / (317 + 231) = 10.46 binds before B/q = 16; with a large cache B/q does, rounded down.
    assert parallelism_formula(128, 8, 0.7 * 8192, 317, 462) == 10
    assert parallelism_formula(128, 8, 1e6, 317, 462) == 16
    assert parallelism_formula(127, 8, 1e6, 317, 462) == 15
    assert parallelism_formula(128, 8, 548, 317, 462) == 1


@pytest.mark.parametrize("servers", [14, 15, 16])
def test_matched_parallelism_finds_the_number_that_made_the_wait(servers):
    wait = fcfs_wait(30, REFERENCE, servers)
    assert parallelism_matched(REFERENCE, 30, wait, 128, 8) == servers
    assert parallelism_matched(REFERENCE, 30, 1.02 * wait, 128, 8) == servers


def test_matched_parallelism_stays_between_stability_and_the_budget():
    assert parallelism_matched(REFERENCE, 30, 1e6, 128, 8) == 14  # A = 13.5 Erlangs
    assert parallelism_matched(REFERENCE, 30, 0, 128, 8) == 16


def test_calibrated_from_the_default_engine():
    """From FCFS runs at λ = 30 to the order of the policies at every load (paper, sections IV-A5 and IV-B)."""
    config = qba.EngineConfig()

    def pooled(policy, rate, *names):
        runs = [qba.simulate(qba.synthetic(rate, seed), policy, config) for seed in range(5)]
        return [np.concatenate([np.atleast_1d(run[name]) for run in runs]) for name in names]

    start, finish, long, prompt, response, wait = pooled(
        qba.FCFS(), 30, "start_s", "finish_s", "true_long", "prompt_tokens", "response_tokens", "wait_s"
    )
    moments = ServiceMoments.from_times(start, finish, long)
    servers = parallelism_formula(
        config.token_budget, config.decode_block, config.kv_safe_tokens, prompt.mean(), response.mean()
    )
    assert servers == 10
    assert fcfs_wait(30, moments, servers) < wait.mean() / 10  # for ordering, not for matching
    assert parallelism_matched(moments, 30, wait.mean(), config.token_budget, config.decode_block) < servers

    measured = [25, 27, 29, 31, 33]
    aged, promoted = (
        PromotedFraction(load(measured, moments, servers), [pooled(policy, rate, name)[0].mean() for rate in measured])
        for policy, name in ((qba.AA(), "aged_fraction"), (qba.QBA(), "promoted_fraction"))
    )
    rates = np.arange(26, 41)
    waits = mean_waits(rates, moments, servers, aged, promoted)
    assert (waits["PSF"] < waits["QBA"]).all()
    assert (waits["QBA"] < waits["AA"]).all()
    assert (waits["AA"] < waits["FCFS"]).all()
    assert rates[aged.extrapolated(load(rates, moments, servers))].tolist() == list(range(34, 41))


# --- limits ----------------------------------------------------------------------------------------------------------


@given(st.floats(0.01, 10), loads_drawn)
def test_one_exponential_server_is_m_m_1(mean, rho):
    moments = ServiceMoments(1, mean, 2 * mean**2, 0, 0)
    assert fcfs_wait(rho / mean, moments, 1) == pytest.approx(rho * mean / (1 - rho))


@given(classes, loads_drawn)
def test_one_server_is_pollaczek_khinchine_and_cobham(moments, rho):
    rate = rho / moments.mean_s
    residual = rate * moments.square_s2 / 2
    rho_short = rate * moments.short_share * moments.short_mean_s
    assert fcfs_wait(rate, moments, 1) == pytest.approx(residual / (1 - rho))
    short, long = two_class_waits(rate, moments, 1)
    assert short == pytest.approx(residual / (1 - rho_short))
    assert long == pytest.approx(residual / (1 - rho_short) / (1 - rho))


@given(servers_drawn, loads_drawn)
def test_exponential_servers_are_m_m_n(servers, rho):
    rate = rho * servers
    assert fcfs_wait(rate, EXPONENTIAL, servers) == pytest.approx(erlang_c(servers, rate) / (servers - rate))


@given(classes, servers_drawn, loads_drawn, st.sampled_from(sorted(CLOSURES)))
def test_nothing_promoted_is_psf(moments, servers, rho, closure):
    waits = mean_waits(rho * servers / moments.mean_s, moments, servers, constant(0), constant(0), closure=closure)
    assert waits["AA"] == pytest.approx(waits["PSF"])
    assert waits["QBA"] == pytest.approx(waits["PSF"])


@pytest.mark.parametrize("closure", ["mixture", "reclassify"])
@given(moments=classes, servers=servers_drawn, rho=loads_drawn)
def test_all_promoted_is_fcfs(closure, moments, servers, rho):
    waits = mean_waits(rho * servers / moments.mean_s, moments, servers, constant(1), constant(1), closure=closure)
    assert waits["AA"] == pytest.approx(waits["FCFS"])


@pytest.mark.parametrize("closure", ["three_class", "conservation"])
def test_all_promoted_is_long_first(closure):
    swapped = REFERENCE.predicted(1, 1)
    waits = mean_waits(32, REFERENCE, 16, constant(1), HALF, closure=closure)
    assert waits["AA"] == pytest.approx(mean_waits(32, swapped, 16, HALF, HALF)["PSF"])
    assert waits["AA"] > waits["FCFS"]  # aging can cost more than it brings, as in the simulator


def test_conservation_closure_is_psf_to_the_last_bit_where_nothing_is_promoted():
    waits = mean_waits([26, 32], REFERENCE, 16, constant(0), HALF, closure="conservation")
    assert (waits["AA"] == waits["PSF"]).all()


# --- properties ------------------------------------------------------------------------------------------------------


@given(classes, servers_drawn, loads_drawn)
def test_work_is_conserved_between_fcfs_and_priority(moments, servers, rho):
    rate = rho * servers / moments.mean_s
    queue = Queue(rate, moments, servers)
    short, long = two_class_waits(rate, moments, servers)
    fcfs = fcfs_wait(rate, moments, servers)
    assert queue.short[1] * short + queue.long[1] * long == pytest.approx(rho * fcfs)


@given(classes, servers_drawn, loads_drawn, fractions_drawn, st.sampled_from(sorted(CLOSURES)))
def test_every_closure_keeps_the_conservation_law(moments, servers, rho, fraction, closure):
    """What they share. It leaves them one degree of freedom, on which the next test and their values differ."""
    queue = Queue(rho * servers / moments.mean_s, moments, servers)
    short, long = CLOSURES[closure](queue, fraction)
    assert queue.short[1] * short + queue.long[1] * long == pytest.approx(rho * queue.fcfs_s)
    ends = sorted([queue.psf()[1], queue.long_first()[1]])
    assert ends[0] * (1 - 1e-9) <= long <= ends[1] * (1 + 1e-9)


@given(classes, servers_drawn, loads_drawn, fractions_drawn)
def test_conservation_closure_passes_fcfs_at_its_position(moments, servers, rho, fraction):
    queue = Queue(rho * servers / moments.mean_s, moments, servers)
    position = fcfs_position(queue)
    assert CLOSURES["conservation"](queue, position) == pytest.approx((queue.fcfs_s, queue.fcfs_s))
    wait = queue.mean(CLOSURES["conservation"](queue, fraction))
    aside = abs(fraction - position) > 1e-6
    if moments.long_mean_s > 1.01 * moments.short_mean_s and 0.01 < moments.short_share < 0.99 and aside:
        assert (wait > queue.fcfs_s) == (fraction > position)


@given(st.floats(0, 1), st.floats(0.01, 10), servers_drawn, loads_drawn, st.sampled_from(sorted(CLOSURES)))
def test_order_does_not_matter_to_the_mean_where_classes_are_alike(p, mean, servers, rho, closure):
    moments = ServiceMoments(p, mean, 2 * mean**2, mean, 2 * mean**2)
    waits = mean_waits(rho * servers / mean, moments, servers, HALF, constant(0.3), closure=closure)
    for policy in ("PSF", "AA", "QBA"):
        assert waits[policy] == pytest.approx(waits["FCFS"])


@given(classes, servers_drawn, loads_drawn, fractions_drawn, st.sampled_from(sorted(CLOSURES)))
def test_waits_are_finite_and_not_negative_below_saturation(moments, servers, rho, fraction, closure):
    rate = rho * servers / moments.mean_s
    waits = mean_waits(rate, moments, servers, constant(fraction), constant(fraction), closure=closure)
    assert all(np.isfinite(wait) and wait >= 0 for wait in waits.values())


@given(classes, servers_drawn, loads_drawn, fractions_drawn, st.sampled_from(["mixture", "reclassify"]))
def test_two_closures_stay_between_psf_and_fcfs(moments, servers, rho, fraction, closure):
    rate = rho * servers / moments.mean_s
    waits = mean_waits(rate, moments, servers, constant(fraction), constant(fraction), closure=closure)
    low, high = sorted([waits["PSF"], waits["FCFS"]])
    assert low * (1 - 1e-9) <= waits["QBA"] <= high * (1 + 1e-9)


@pytest.mark.parametrize("closure", sorted(CLOSURES))
def test_waits_grow_with_the_rate_and_the_promoted_fraction(closure):
    rates = np.linspace(1, 35.5, 70)
    by_fraction = []
    for fraction in np.linspace(0, 1, 11):
        waits = mean_waits(rates, REFERENCE, 16, constant(fraction), constant(fraction), closure=closure)
        assert all((np.diff(wait) > 0).all() for wait in waits.values())
        by_fraction.append(waits["QBA"])
    assert (np.diff(by_fraction, axis=0) > 0).all()


def test_waits_fall_with_servers_and_grow_with_variability():
    waits = [fcfs_wait(30, REFERENCE, n) for n in range(14, 40)]
    assert (np.diff(waits) < 0).all()
    smooth, rough = ServiceMoments(1, 0.4, 0.16, 0, 0), ServiceMoments(1, 0.4, 0.32, 0, 0)
    assert fcfs_wait(30, rough, 16) == pytest.approx(2 * fcfs_wait(30, smooth, 16))


@given(classes, servers_drawn, st.floats(1.0001, 5), st.sampled_from(sorted(CLOSURES)))
def test_no_steady_state_is_infinite(moments, servers, rho, closure):
    rate = rho * servers / moments.mean_s
    for policy, wait in mean_waits([rate], moments, servers, HALF, HALF, closure=closure).items():
        assert wait[0] == math.inf, policy
    assert two_class_waits(rate, moments, servers) == (math.inf, math.inf)
    assert fcfs_wait(rate, moments, servers) == math.inf
    assert erlang_c(servers, rho * servers) == 1


@pytest.mark.parametrize("fraction", [0, 0.5, 1])
@pytest.mark.parametrize("closure", sorted(CLOSURES))
def test_saturation_itself_is_infinite_and_just_below_is_not(closure, fraction):
    phi = constant(fraction)
    waits = mean_waits([4, math.nextafter(4, 0), 4.1], EXPONENTIAL, 4, phi, phi, closure=closure)
    for wait in waits.values():
        assert (np.isfinite(wait) == [False, True, False]).all()
        assert not np.isnan(wait).any()


def test_priority_waits_are_infinite_from_the_class_that_fills_the_servers():
    assert priority_waits(1, [0.5, 0.25, 0.25, 0.1]) == [2, 8, math.inf, math.inf]


def test_classes_without_members_do_not_turn_the_mean_into_nan():
    queue = Queue(4, EXPONENTIAL, 5)
    assert queue.mean((2.0, math.inf)) == math.inf
    alone = Queue(4, ServiceMoments(1, 1, 2, 0, 0), 5)
    assert alone.mean((2.0, math.inf)) == 2
    for share in (0.0, 1.0):
        moments = ServiceMoments(share, 0.4, 0.32, 0.4, 0.32)
        waits = mean_waits([30, 50], moments, 16, HALF, HALF, closure="three_class")
        assert waits["PSF"][0] == pytest.approx(waits["FCFS"][0])
        assert waits["PSF"][1] == math.inf


def test_rates_keep_their_shape():
    rates = np.array([[20, 25, 30], [32, 34, 36]])
    waits = mean_waits(rates, REFERENCE, 16, HALF, HALF)
    assert all(wait.shape == (2, 3) for wait in waits.values())
    assert waits["PSF"][1, 0] == mean_waits(32, REFERENCE, 16, HALF, HALF)["PSF"]


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_waits(32, REFERENCE, 16, HALF, HALF, closure="average"), "closure = 'average'.*three_class"),
        (lambda: mean_waits([32, 0], REFERENCE, 16, HALF, HALF), "rate = 0,"),
        (lambda: mean_waits([32, -1.0], REFERENCE, 16, HALF, HALF), "rate = -1.0"),
        (lambda: mean_waits(float("nan"), REFERENCE, 16, HALF, HALF), "rate = nan"),
        (lambda: mean_waits(["many"], REFERENCE, 16, HALF, HALF), "rate = 'many'"),
        (lambda: mean_waits(32, REFERENCE, 0, HALF, HALF), "servers = 0"),
        (lambda: mean_waits(32, REFERENCE, 2.5, HALF, HALF), "servers = 2.5"),
        (lambda: mean_waits(32, REFERENCE, 16, HALF, HALF, short_to_long=-0.1), "short_to_long = -0.1"),
        (lambda: mean_waits(32, REFERENCE, 16, HALF, HALF, long_to_short=1.1), "long_to_short = 1.1"),
        (lambda: erlang_b(0, 1), "servers = 0"),
        (lambda: erlang_c(2, -1), "offered_load = -1"),
        (lambda: parallelism_formula(128, 8, 500, 317, 462), "kv_safe_tokens = 500.* needs 548"),
        (lambda: parallelism_formula(4, 8, 5000, 317, 462), "decode_block = 8"),
        (lambda: parallelism_formula(128, 8, 5000, 0, 462), "prompt_mean = 0"),
        (lambda: parallelism_matched(REFERENCE, 40, 1, 128, 8), "rate = 40 .* B/q allows 16"),
        (lambda: parallelism_matched(REFERENCE, 30, -1, 128, 8), "simulated_wait_s = -1"),
    ],
)
def test_mistakes_get_one_line(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
