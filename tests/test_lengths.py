"""Length distributions: their laws against scipy's, what their parameters mean, and that they share random numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from qba.errors import InputError
from qba.lengths import Exponential, Gamma, LengthDistribution, LogNormal, LogNormalMixture, Uniform

LEVELS = np.concatenate([[1e-9, 1e-6, 1e-4], np.linspace(0.001, 0.999, 999), 1 - np.array([1e-4, 1e-6, 1e-9])])
MIXTURE = LogNormalMixture(462, cv=1.1, share=0.2, ratio=5)
LAWS = [
    Exponential(317),
    LogNormal(462, cv=1.2),
    Gamma(462, cv=0.6),
    Uniform(300, cv=0.4),
    MIXTURE,
    LogNormalMixture(462, cv=3, share=0.01, ratio=20),
    LogNormalMixture(100, cv=0.5, share=0.5, ratio=2),
]
each_law = pytest.mark.parametrize("law", LAWS, ids=repr)


def scipys(law: LengthDistribution):
    """The same law by scipy.stats, from the textbook's parameters."""
    if isinstance(law, Exponential):
        return stats.expon(scale=law.mean)
    if isinstance(law, LogNormal):
        variance = math.log(1 + law.cv**2)
        return stats.lognorm(math.sqrt(variance), scale=law.mean / math.exp(variance / 2))
    if isinstance(law, Gamma):
        return stats.gamma(1 / law.cv**2, scale=law.mean * law.cv**2)
    half = law.mean * law.cv * math.sqrt(3)
    return stats.uniform(law.mean - half, 2 * half)


@each_law
def test_the_quantile_function_is_the_laws_own(law):
    if isinstance(law, LogNormalMixture):
        brief = scipys(LogNormal(law.brief_mean, cv=law.component_cv))
        extended = scipys(LogNormal(law.brief_mean * law.ratio, cv=law.component_cv))
        lengths = law.quantile(LEVELS)
        below = (1 - law.share) * brief.cdf(lengths) + law.share * extended.cdf(lengths)
        above = (1 - law.share) * brief.sf(lengths) + law.share * extended.sf(lengths)
        np.testing.assert_allclose(below, LEVELS, rtol=1e-6)
        np.testing.assert_allclose(above, 1 - LEVELS, rtol=1e-6)
    else:
        np.testing.assert_allclose(law.quantile(LEVELS), scipys(law).ppf(LEVELS), rtol=1e-9)


@each_law
def test_mean_and_cv_are_what_they_say(law):
    first, second = (
        integrate.quad(lambda u, power: float(law.quantile(u)) ** power, 0, 1, (power,), limit=2000, epsrel=1e-7)[0]
        for power in (1, 2)
    )
    assert first == pytest.approx(law.mean, rel=1e-4)
    assert math.sqrt(second / first**2 - 1) == pytest.approx(getattr(law, "cv", 1.0), rel=2e-3)


@each_law
def test_lengths_rise_with_the_uniform_number(law):
    """So any two laws fed with the same numbers put the same requests in the same order."""
    u = np.sort(np.random.default_rng(1).random(20_000))
    assert (np.diff(law.quantile(u)) > 0).all()
    assert np.isfinite(law.quantile([0.0, np.nextafter(1, 0)])).all()


@each_law
def test_tokens_are_whole_clipped_and_at_least_one(law):
    u = np.random.default_rng(2).random(1000)
    clipped = type(law)(**{**vars(law), "at_most": 250})
    tokens = clipped.tokens(u)
    assert tokens.dtype == np.int64 and tokens.min() >= 1 and tokens.max() == 250
    np.testing.assert_array_equal(tokens, np.clip(np.rint(law.quantile(u)), 1, 250))
    assert "at_most=250" in repr(clipped) and "at_most" not in repr(law)


@each_law
def test_its_text_makes_it_again(law):
    again = eval(repr(law), vars(__import__("qba.lengths", fromlist=["x"])))  # the text is a call
    assert again == law and hash(again) == hash(law)


def test_special_cases_meet():
    u = np.random.default_rng(3).random(500)
    np.testing.assert_allclose(Gamma(317, cv=1).quantile(u), Exponential(317).quantile(u), rtol=1e-9)
    same = LogNormalMixture(462, cv=0.9, share=0.3, ratio=1)
    np.testing.assert_allclose(same.quantile(u), LogNormal(462, cv=0.9).quantile(u), rtol=1e-9)
    for law in (LogNormal(50, cv=0), Gamma(50, cv=0), Uniform(50, cv=0)):
        assert (law.quantile(u) == pytest.approx(50)) and (law.tokens(u) == 50).all()
    assert Uniform.between(100, 500) == Uniform(300, cv=400 / 300 / math.sqrt(12))
    assert Uniform.between(0, 10).quantile(0.0) == pytest.approx(0)
    two = LogNormalMixture(100, cv=0.4, share=0.2, ratio=2.25)  # as wide as two single lengths are
    assert sorted(set(two.tokens(u))) == [80, 180]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.floats(1, 1e5), st.floats(0.01, 0.99), st.floats(1, 30), st.floats(0.05, 3))
def test_a_mixture_keeps_its_mean_and_cv(mean, share, ratio, component_cv):
    brief = mean / (1 - share + share * ratio)
    square = (1 + component_cv**2) * (1 - share + share * ratio**2) * brief**2
    law = LogNormalMixture(mean, cv=math.sqrt(square / mean**2 - 1), share=share, ratio=ratio)
    assert law.component_cv == pytest.approx(component_cv, rel=1e-6) and law.brief_mean == pytest.approx(brief)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Exponential(0), "Exponential: mean = 0"),
        (lambda: Exponential(5, at_most=0.5), "Exponential: at_most = 0.5"),
        (lambda: Exponential(5, cv=1), "Exponential has no parameter 'cv': it has"),
        (lambda: LogNormal(-1, cv=1), "LogNormal: mean = -1"),
        (lambda: LogNormal(5, cv=-1), "LogNormal: cv = -1"),
        (lambda: Gamma(5, cv=float("nan")), "Gamma: cv = nan"),
        (lambda: Uniform(5, cv=0.6), "Uniform: cv = 0.6, but beyond 1/√3"),
        (lambda: Uniform.between(-1, 5), "Uniform: low = -1"),
        (lambda: Uniform.between(5, 5), "Uniform: high = 5"),
        (lambda: LogNormalMixture(5, cv=1, share=1, ratio=2), "share = 1.0, but it must be below 1"),
        (lambda: LogNormalMixture(5, cv=1, share=0, ratio=2), "share = 0"),
        (lambda: LogNormalMixture(5, cv=1, share=0.5, ratio=0.5), "ratio = 0.5"),
        (lambda: LogNormalMixture(5, cv=0.3, share=0.2, ratio=2.25), "cv = 0.3, but a share of 0.2 .* at least 0.4$"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_the_base_is_no_distribution_by_itself():
    with pytest.raises(TypeError):
        LengthDistribution(5)
