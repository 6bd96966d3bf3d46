"""The stand-in: its constants follow from the published figures, and its draws have them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import ndtr, ndtri

import qba
from qba.traces import draw_2024, interarrival_scv, length_correlation, standin_2024, standin

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(201)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def test_response_constants_solve_for_the_published_figures():
    def misses(x):
        share, brief, extended, sigma = x[0], *np.exp(x[1:])

        def probability(tokens):
            return (1 - share) * -np.expm1(-tokens / brief) + share * ndtr(np.log(tokens / extended) / sigma)

        mean = (1 - share) * brief + share * extended * np.exp(sigma**2 / 2)
        return [
            probability(standin.RESPONSE_MEDIAN) - 0.5,
            probability(standin.RESPONSE_P90) - 0.9,
            probability(standin.RESPONSE_P99) - 0.99,
            np.log(mean / standin.RESPONSE_MEAN),
        ]

    solution = optimize.root(misses, [0.2, np.log(40), np.log(400), np.log(0.4)], tol=1e-12)
    assert solution.success
    np.testing.assert_allclose(
        [solution.x[0], *np.exp(solution.x[1:])],
        [standin.EXTENDED_SHARE, standin.BRIEF_MEAN, standin.EXTENDED_SCALE, standin.EXTENDED_SIGMA],
        rtol=1e-5,
    )


def test_prompt_constants_solve_for_the_published_figures_and_the_correlation(monkeypatch):
    brief, extended, scale, sigma = (
        getattr(standin, name) for name in ("BRIEF_MEAN", "EXTENDED_SHARE", "EXTENDED_SCALE", "EXTENDED_SIGMA")
    )
    second_moment = (1 - extended) * 2 * brief**2 + extended * scale**2 * np.exp(2 * sigma**2)
    response_variance = second_moment - standin.RESPONSE_MEAN**2
    latent = standin.LONG_CORRELATION
    scores = latent * NODES[:, None] + np.sqrt(1 - latent**2) * NODES

    def misses(x):
        share, *kinds = x[0], *np.exp(x[1:]).reshape(2, 2)
        weights = (1 - share, share)

        def probability(tokens):
            cut = [ndtr(np.log(np.array([tokens, standin.MAX_PROMPT]) / m) / s) for m, s in kinds]
            return sum(w * below / whole for w, (below, whole) in zip(weights, cut))

        short, long = (standin.prompt_quantile(NODES, *kind) for kind in kinds)
        mean, square = ((1 - share) * WEIGHTS @ short**k + share * WEIGHTS @ long**k for k in (1, 2))
        monkeypatch.setattr(standin, "LONG_SHARE", share)
        long_pairs = (WEIGHTS * long) @ standin.long_response(scores) @ WEIGHTS
        product = (1 - share) * (WEIGHTS @ short) * brief + share * long_pairs
        scatter = np.sqrt(response_variance * (square - mean**2))
        return [
            mean / standin.PROMPT_MEAN - 1,
            probability(standin.PROMPT_MEDIAN) - 0.5,
            probability(standin.PROMPT_P90) - 0.9,
            probability(standin.PROMPT_P99) - 0.99,
            (product - mean * standin.RESPONSE_MEAN) / scatter - standin.LENGTH_CORRELATION,
        ]

    constants = [
        standin.LONG_SHARE,
        standin.SHORT_PROMPT_SCALE,
        standin.SHORT_PROMPT_SIGMA,
        standin.LONG_PROMPT_SCALE,
        standin.LONG_PROMPT_SIGMA,
    ]
    solution = optimize.root(misses, [0.45, *np.log([560, 0.45, 2600, 0.5])], tol=1e-11)
    assert solution.success
    np.testing.assert_allclose([solution.x[0], *np.exp(solution.x[1:])], constants, rtol=3e-4)


def test_long_responses_invert_their_distribution():
    probability = np.linspace(0.001, 0.999, 999)
    np.testing.assert_allclose(
        standin.long_response_probability(standin.long_response(ndtri(probability))), probability, atol=1e-5
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
        (prompt, 0.9, standin.PROMPT_P90),
        (prompt, 0.99, standin.PROMPT_P99),
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


def test_a_published_figure_that_was_not_fitted():
    """The week's 95th percentile of responses is 455."""
    assert np.quantile(draw_2024(400_000, seed=3).response_tokens, 0.95) == pytest.approx(455, rel=0.02)


def test_ranks_hang_together_less_than_lengths_and_only_among_long_prompts():
    drawn = draw_2024(200_000, seed=2)
    prompt, response = drawn.prompt_tokens, drawn.response_tokens
    assert stats.spearmanr(prompt, response).statistic == pytest.approx(0.37, abs=0.01)
    brief = prompt < 400  # hardly any of these is of the long kind
    assert abs(stats.spearmanr(prompt[brief], response[brief]).statistic) < 0.03


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
    assert standin.MAX_PROMPT * 0.44 < limit


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


def test_labels_may_go_by_total_tokens_and_by_all_windows():
    whole = standin_2024(5, 200, label_by="total", label_threshold="whole")
    total = np.concatenate([part.prompt_tokens + part.response_tokens for part in whole])
    assert (np.concatenate([part.true_long for part in whole]) == (total > np.quantile(total, 0.85))).all()
    own = standin_2024(5, 200, label_by="total")
    assert len({part.true_long.sum() for part in whole}) > 1
    for part in own:
        total = part.prompt_tokens + part.response_tokens
        assert (part.true_long == (total > np.quantile(total, 0.85))).all()
