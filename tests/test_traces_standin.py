"""The stand-in: its constants follow from the published figures, and its draws have them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from scipy.special import ndtr, ndtri

import qba
from qba.traces import draw_2024, interarrival_scv, length_correlation, read_trace, standin_2024, standin
from real_traces import real_trace

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(201)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def test_prompt_constants_solve_for_the_published_figures():
    def misses(x):
        median, sigma = np.exp(x[0]), x[1]
        cut = np.log(standin.MAX_PROMPT / median) / sigma
        below = ndtr(cut)
        return [
            median * np.exp(sigma * ndtri(0.5 * below)) / standin.PROMPT_MEDIAN - 1,
            median * np.exp(sigma**2 / 2) * ndtr(cut - sigma) / below / standin.PROMPT_MEAN - 1,
        ]

    solution = optimize.root(misses, [np.log(900), 1.0], tol=1e-12)
    assert solution.success
    np.testing.assert_allclose(
        [np.exp(solution.x[0]), solution.x[1]], [standin.PROMPT_SCALE, standin.PROMPT_SIGMA], rtol=1e-5
    )


def test_response_constants_solve_for_the_published_figures():
    late = standin.EXTENDED_SIGMA

    def misses(x):
        share, brief, extended, sigma = x[0], np.exp(x[1]), np.exp(x[2]), x[3]

        def probability(tokens):
            return share * ndtr(np.log(tokens / brief) / sigma) + (1 - share) * ndtr(np.log(tokens / extended) / late)

        mean = share * brief * np.exp(sigma**2 / 2) + (1 - share) * extended * np.exp(late**2 / 2)
        return [
            probability(standin.RESPONSE_MEDIAN) - 0.5,
            probability(standin.RESPONSE_P90) - 0.9,
            probability(standin.RESPONSE_P99) - 0.99,
            np.log(mean / standin.RESPONSE_MEAN),
        ]

    solution = optimize.root(misses, [0.9, np.log(30), np.log(450), 1.0], tol=1e-12)
    assert solution.success
    share, brief, extended, sigma = solution.x
    np.testing.assert_allclose(
        [share, np.exp(brief), np.exp(extended), sigma],
        [standin.BRIEF_SHARE, standin.BRIEF_SCALE, standin.EXTENDED_SCALE, standin.BRIEF_SIGMA],
        rtol=1e-5,
    )


def test_latent_correlation_gives_the_published_one():
    prompts, responses = standin.prompt_quantile(NODES), standin.response_quantile(NODES)
    means = WEIGHTS @ prompts, WEIGHTS @ responses
    scatter = np.sqrt(WEIGHTS @ prompts**2 - means[0] ** 2) * np.sqrt(WEIGHTS @ responses**2 - means[1] ** 2)

    def miss(latent):
        scores = latent * NODES[:, None] + np.sqrt(1 - latent**2) * NODES
        product = WEIGHTS @ (prompts[:, None] * standin.response_quantile(scores)) @ WEIGHTS
        return (product - means[0] * means[1]) / scatter - standin.LENGTH_CORRELATION

    assert optimize.brentq(miss, 0.3, 0.9) == pytest.approx(standin.LATENT_CORRELATION, abs=1e-4)


def test_response_quantiles_invert_the_distribution():
    probability = np.linspace(0.001, 0.999, 999)
    np.testing.assert_allclose(
        standin.response_probability(standin.response_quantile(ndtri(probability))), probability, atol=1e-5
    )


def test_draws_have_the_published_figures():
    """Each figure within four standard errors of 400,000 draws (quantiles: the level reached)."""
    drawn = draw_2024(400_000, seed=1)
    n = len(drawn)
    prompt, response = drawn.prompt_tokens, drawn.response_tokens
    for values, mean in ((prompt, standin.PROMPT_MEAN), (response, standin.RESPONSE_MEAN)):
        assert abs(values.mean() - mean) < 4 * values.std() / np.sqrt(n)
    for values, level, quantile in (
        (prompt, 0.5, standin.PROMPT_MEDIAN),
        (response, 0.5, standin.RESPONSE_MEDIAN),
        (response, 0.9, standin.RESPONSE_P90),
        (response, 0.99, standin.RESPONSE_P99),
    ):
        rounding = np.mean(values == quantile)  # lengths are whole: the level at a length is an interval
        assert abs(np.mean(values <= quantile) - rounding / 2 - level) < rounding / 2 + 4 * np.sqrt(
            level * (1 - level) / n
        )
    assert length_correlation(drawn) == pytest.approx(standin.LENGTH_CORRELATION, abs=0.01)
    assert prompt.max() <= standin.MAX_PROMPT


def test_gaps_have_mean_one_and_the_asked_burstiness():
    gaps = standin.hyperexponential(np.random.default_rng(0), 1_000_000)
    assert gaps.mean() == pytest.approx(1, abs=4 * gaps.std() / 1000)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(standin.GAP_SCV, rel=0.02)


def test_windows_are_at_the_papers_load_and_the_engine_can_serve_them():
    parts = standin_2024(windows=10, requests_per_window=500)
    limit = qba.EngineConfig().kv_safe_tokens
    for part in parts:
        assert (len(part) - 1) / part.arrival_s[-1] == pytest.approx(32)
        assert part.prompt_tokens.max() <= limit
        assert 0.12 < part.true_long.mean() <= 0.15
    assert standin.MAX_PROMPT * 0.44 < limit < (standin.MAX_PROMPT + 100) * 0.44


def test_mean_burstiness_and_tokens_over_windows():
    parts = standin_2024()
    scv = np.array([interarrival_scv(part) for part in parts])
    # The sample SCV of n gaps is biased low by about 1 % at n = 1000.
    assert scv.mean() == pytest.approx(standin.GAP_SCV, abs=0.03 + 3 * scv.std() / np.sqrt(len(parts)))
    tokens = np.mean([part.prompt_tokens.mean() + part.response_tokens.mean() for part in parts])
    assert tokens == pytest.approx(0.44 * (1632 + 106), rel=0.01)


def test_windows_are_reproducible_and_of_their_own():
    few, many = standin_2024(2, 50, seed=7), standin_2024(4, 50, seed=7)
    for a, b in zip(few, many):
        assert (a.arrival_s == b.arrival_s).all() and (a.prompt_tokens == b.prompt_tokens).all()
    others = [draw_2024(50, seed=8), draw_2024(50, seed=7, window=1)]
    for other in others:
        assert (other.prompt_tokens != draw_2024(50, seed=7).prompt_tokens).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: standin_2024(0), "windows = 0"),
        (lambda: standin_2024(1, 1), "requests_per_window = 1"),
        (lambda: standin_2024(1, 10, seed=-1), "seed = -1"),
        (lambda: draw_2024(1.5), "requests = 1.5"),
    ],
)
def test_bad_sizes_are_refused(call, message):
    with pytest.raises(qba.InputError, match=message):
        call()


def test_real_excerpt_is_of_this_kind():
    """186 consecutive rows, 8 seconds of traffic: enough to show a gross misfit only."""
    real = read_trace(real_trace("azure-2024-conversation-excerpt.csv"))
    drawn = draw_2024(100_000, seed=2)
    for name in ("prompt_tokens", "response_tokens"):
        for level in (0.5, 0.9):
            ratio = np.quantile(getattr(drawn, name), level) / np.quantile(getattr(real, name), level)
            assert 1 / 1.5 < ratio < 1.5
    for requests in (real, drawn):
        long = requests.true_long
        assert 2 < requests.prompt_tokens[long].mean() / requests.prompt_tokens[~long].mean() < 3.5
        assert length_correlation(requests) == pytest.approx(standin.LENGTH_CORRELATION, abs=0.1)
