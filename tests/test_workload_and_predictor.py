"""The synthetic workload's laws and streams, and the predictor's errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import qba
from qba.lengths import Gamma, LogNormal, Uniform
from qba.workload import PROMPT, RESPONSE, ROOT_SEED, STREAMS, stream

SEEDS = range(40)


def pooled(name: str, **parameters) -> np.ndarray:
    return np.concatenate([getattr(qba.synthetic(seed=s, **parameters), name) for s in SEEDS])


def test_the_sample_size_follows_the_rate():
    assert [len(qba.synthetic(rate)) for rate in (26, 32, 0.5)] == [2600, 3200, 50]
    assert len(qba.synthetic(10, horizon_s=7)) == 70
    assert [len(qba.synthetic(rate, requests=70)) for rate in (10, 32)] == [70, 70]


def test_arrivals_are_poisson():
    gaps = np.concatenate([np.diff(qba.synthetic(seed=s).arrival_s) for s in SEEDS])  # 127,960 gaps
    assert stats.kstest(gaps, "expon", args=(0, 1 / 32)).pvalue > 0.001


def test_lengths_have_the_stated_means_and_spread():
    # 128,000 requests: the interval is four standard errors, wide enough for a fixed sample and far below 1 %.
    for name, law, cv in (("prompt_tokens", PROMPT, 1.0), ("response_tokens", RESPONSE, RESPONSE.cv)):
        values = pooled(name)
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - law.mean) < 4 * error
        assert abs(values.std() / values.mean() - cv) < 0.03


def test_a_column_is_its_stream_turned_into_lengths():
    laws = {"prompt": Gamma(40, cv=0.7, at_most=100), "response": Uniform.between(3, 9)}
    requests = qba.synthetic(seed=6, **laws)
    assert np.array_equal(requests.prompt_tokens, laws["prompt"].tokens(stream(6, "prompts").random(3200)))
    assert np.array_equal(requests.response_tokens, laws["response"].tokens(stream(6, "responses").random(3200)))


def test_labels_come_from_the_samples_own_quantile():
    requests = qba.synthetic(seed=7)
    assert 470 < requests.true_long.sum() <= 480  # 15 % of 3200, less ties with the threshold
    assert requests.response_tokens[requests.true_long].min() > requests.response_tokens[~requests.true_long].max()


def test_a_replication_is_a_child_of_the_root_and_its_streams_are_apart():
    child = np.random.SeedSequence(ROOT_SEED).spawn(4)[3]
    grandchild = child.spawn(len(STREAMS))[STREAMS.index("prompts")]
    assert stream(3, "prompts").random() == np.random.default_rng(grandchild).random()
    a, b = qba.synthetic(seed=3), qba.synthetic(seed=3, response=LogNormal(100, cv=0.2))
    assert np.array_equal(a.arrival_s, b.arrival_s) and np.array_equal(a.prompt_tokens, b.prompt_tokens)
    assert not np.array_equal(a.prompt_tokens, qba.synthetic(seed=4).prompt_tokens)


def test_another_rate_stretches_the_same_replication():
    slow, fast = qba.synthetic(16, 5, horizon_s=200), qba.synthetic(32, 5)
    np.testing.assert_allclose(slow.arrival_s, 2 * fast.arrival_s, rtol=1e-14)
    assert np.array_equal(slow.response_tokens, fast.response_tokens)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rate": 0}, "rate = 0"),
        ({"rate": float("nan")}, "rate = nan"),
        ({"rate": 0.001}, "makes 0 requests"),
        ({"rate": 1e9}, "makes 100,000,000,000 requests"),
        ({"requests": 0}, "requests = 0"),
        ({"requests": 2.5}, "requests = 2.5"),
        ({"requests": 10**9}, "requests = 1000000000 makes 1,000,000,000 requests"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"prompt": 317}, "prompt is 317, but it must be a distribution of lengths such as Exponential"),
        ({"response": LogNormal}, "response is <class"),
        ({"response": LogNormal(1e12, cv=0.1)}, "response_tokens.*lengths must be whole tokens from 1 to"),
    ],
)
def test_impossible_workloads_are_refused(parameters, message):
    with pytest.raises(qba.InputError, match=message):
        qba.synthetic(**parameters)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(low=st.floats(0, 1), high=st.floats(0, 1), seed=st.integers(0, 5), to_long=st.booleans())
def test_more_errors_flip_a_superset(low, high, seed, to_long):
    low, high = sorted((low, high))
    requests = qba.synthetic(10, seed)
    name = "short_to_long" if to_long else "long_to_short"
    few, many = (
        qba.mislabel(requests, **{name: e}, seed=seed).predicted_long != requests.true_long for e in (low, high)
    )
    assert not (few & ~many).any()
    assert not many[requests.true_long == to_long].any()


def test_error_rates_are_met_in_each_class_and_do_not_add_up():
    requests = qba.mislabel(qba.synthetic(seed=1), 0.5, 0.5, seed=1)
    requests = qba.mislabel(requests, short_to_long=0.1, long_to_short=0.3, seed=1)  # anew, from the true labels
    flipped = requests.predicted_long != requests.true_long
    for long, share in ((False, 0.1), (True, 0.3)):
        members = requests.true_long == long
        assert stats.binomtest(int(flipped[members].sum()), int(members.sum()), share).pvalue > 0.001
    assert np.array_equal(qba.mislabel(requests, 0, 0).predicted_long, requests.true_long)
    assert np.array_equal(qba.mislabel(requests, 1, 1).predicted_long, ~requests.true_long)


@pytest.mark.parametrize("bad", [{"short_to_long": -0.1}, {"long_to_short": 1.1}, {"long_to_short": float("nan")}])
def test_impossible_error_rates_are_refused(bad):
    with pytest.raises(qba.InputError, match=next(iter(bad))):
        qba.mislabel(qba.synthetic(1), **bad)


def test_only_requests_can_be_mislabelled():
    with pytest.raises(qba.InputError, match="requests is None, but it must be a qba.Requests"):
        qba.mislabel(None)


def lengths(**errors) -> np.ndarray:
    return qba.predict_lengths(qba.synthetic(seed=2), **errors).predicted_tokens


def test_without_errors_lengths_are_predicted_perfectly():
    guessed = qba.synthetic(seed=2).replace(predicted_tokens=np.full(3200, 7))
    perfect = qba.predict_lengths(guessed)
    assert perfect.predicted_tokens is perfect.response_tokens
    assert (qba.predict_lengths(guessed, 1e-12).predicted_tokens == guessed.response_tokens).all()


def test_errors_of_the_length_are_lognormal_and_paired():
    truth = qba.synthetic(seed=2).response_tokens
    z = stream(2, "length errors").standard_normal(3200)
    for error in (0.1, 0.5, 2.0):
        predicted = lengths(error=error, seed=2)
        assert np.array_equal(predicted, np.maximum(1, np.rint(truth * np.exp(error * z))))
    logs = np.log(lengths(error=0.5, seed=2) / truth)[truth > 50]  # beyond where rounding shows
    assert stats.kstest(logs, "norm", args=(0, 0.5)).pvalue > 0.001
    assert not np.array_equal(lengths(error=0.5, seed=2), lengths(error=0.5, seed=3))
    assert lengths(error=1e6).max() == 2**31 - 1 and lengths(error=1e6).min() == 1


def test_rank_noise_deals_the_same_lengths_to_others():
    truth = qba.synthetic(seed=2).response_tokens
    correlations = []
    for noise in (0.01, 0.1, 0.5, 10.0):
        predicted = lengths(rank_noise=noise, seed=2)
        assert np.array_equal(np.sort(predicted), np.sort(truth))
        correlations.append(stats.spearmanr(predicted, truth).statistic)
    assert correlations == sorted(correlations, reverse=True)
    assert correlations[0] > 0.99 and abs(correlations[-1]) < 0.1
    both = lengths(error=0.5, rank_noise=0.1, seed=2)
    assert np.array_equal(np.sort(both), np.sort(lengths(error=0.5, seed=2)))


@settings(deadline=None, max_examples=50, derandomize=True)
@given(error=st.floats(0, 50), noise=st.floats(0, 50), seed=st.integers(0, 5), n=st.integers(1, 30))
def test_predicted_lengths_are_whole_tokens_and_leave_all_else(error, noise, seed, n):
    requests = qba.mislabel(qba.synthetic(10, seed, requests=n), 0.2, 0.2)
    guessed = qba.predict_lengths(requests, error, noise, seed)
    assert guessed.predicted_tokens.min() >= 1
    for name in ("arrival_s", "response_tokens", "predicted_long", "client"):
        assert np.array_equal(getattr(guessed, name), getattr(requests, name))


@pytest.mark.parametrize("bad", [{"error": -0.1}, {"rank_noise": -1}, {"rank_noise": float("nan")}])
def test_impossible_errors_of_the_length_are_refused(bad):
    with pytest.raises(qba.InputError, match=f"predict_lengths: {next(iter(bad))}"):
        qba.predict_lengths(qba.synthetic(1), **bad)
