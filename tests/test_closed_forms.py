"""Configurations in which the engine *is* a classical queue, compared with that queue's exact results.

With ``token_budget = decode_block = 1`` the engine takes one token a batch. A request in service uses up every budget,
as a decode or as the continuation of its prompt, so the next one starts at the boundary where it ends; an idle engine
starts an arrival at once. That is one non-preemptive server with service time (P + D) c0. The same holds for a larger
B = q if all lengths are its multiples. Several servers cannot be had exactly: admissions happen only at boundaries
common to all.

Statistics: 40 replications of 60,000 Poisson arrivals, the first 5,000 dropped, and a 99.9 % Student interval of their
means, which must hold the exact value and be narrower than ±3 % of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import qba
from qba.moments import ServiceMoments
from qba.theory import fcfs_wait, two_class_waits

REPLICATIONS, REQUESTS, WARM_UP = 40, 60_000, 5_000
STUDENT_T = 3.55812  # 0.9995-quantile with 39 degrees of freedom
TICK_S = 0.01

POLICIES = (qba.FCFS(), qba.PSF(), qba.AA(), qba.QBA())


def one_server(tokens: int = 1) -> qba.EngineConfig:
    """An engine that serves one request at a time, ``tokens`` of it in a batch of `TICK_S`."""
    token_time, knee = 1e-4, 8  # so that the batch-time law takes part
    return qba.EngineConfig(
        token_budget=tokens,
        decode_block=tokens,
        batch_overhead_s=TICK_S - token_time * max(0, tokens - knee),
        token_time_s=token_time,
        knee_tokens=knee,
    )


def replicate(statistic: Callable[[np.random.Generator], list[float]], seed: int) -> np.ndarray:
    """One row a replication."""
    return np.array([statistic(np.random.default_rng([seed, r])) for r in range(REPLICATIONS)])


def assert_agrees(samples: np.ndarray, exact: float, width: float = 0.03) -> None:
    half = STUDENT_T * samples.std(ddof=1) / np.sqrt(len(samples))
    assert half < width * exact, f"±{half / exact:.1%} is too wide an interval to test anything"
    assert abs(samples.mean() - exact) < half, f"{samples.mean():.5g} ± {half:.2g}, but exactly {exact:.5g}"


def poisson(rng: np.random.Generator, rate: float, n: int = REQUESTS) -> np.ndarray:
    return rng.exponential(1 / rate, n).cumsum()


def steady(run, name: str = "wait_s") -> np.ndarray:
    return run[name].values[WARM_UP:]


def pollaczek_khinchine(rate: float, mean: float, square: float) -> float:
    return rate * square / (2 * (1 - rate * mean))


# --- the mapping itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 16])
def test_the_engine_follows_lindleys_recursion(tokens):
    rng = np.random.default_rng(3)
    prompts, responses = rng.integers(1, 8, 3000), rng.integers(1, 12, 3000)
    service = (prompts + responses) * TICK_S
    arrivals = poisson(rng, 0.9 / service.mean(), 3000)
    requests = qba.Requests(arrival_s=arrivals, prompt_tokens=tokens * prompts, response_tokens=tokens * responses)
    run = qba.simulate(requests, qba.FCFS(), one_server(tokens))

    wait, expected = 0.0, []
    for spent, gap in zip(service, np.diff(arrivals, append=np.inf)):
        expected.append(wait)
        wait = max(0.0, wait + spent - gap)
    np.testing.assert_allclose(run.wait_s, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.finish_s, arrivals + expected + service, rtol=0, atol=1e-9)


# --- one class -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "load"), [(1, 0.5), (1, 0.8), (64, 0.8)])
def test_m_d_1(tokens, load):
    service = 2 * TICK_S  # one batch of prefill, one of decode
    ones = np.full(REQUESTS, tokens)

    def mean_wait(rng):
        requests = qba.Requests(arrival_s=poisson(rng, load / service), prompt_tokens=ones, response_tokens=ones)
        return [steady(qba.simulate(requests, qba.FCFS(), one_server(tokens))).mean()]

    exact = pollaczek_khinchine(load / service, service, service**2)
    assert exact == pytest.approx(load / (1 - load) * service / 2)  # half of M/M/1's
    assert_agrees(replicate(mean_wait, seed=11)[:, 0], exact)


def test_geometric_lengths_are_m_g_1_and_nearly_m_m_1():
    load, tokens = 0.7, 60
    mean = (1 + tokens) * TICK_S
    variance = tokens * (tokens - 1) * TICK_S**2  # of a geometric length from 1 on
    rate = load / mean

    def waits(rng):
        requests = qba.Requests(
            arrival_s=poisson(rng, rate),
            prompt_tokens=np.ones(REQUESTS),
            response_tokens=rng.geometric(1 / tokens, REQUESTS),
        )
        wait = steady(qba.simulate(requests, qba.FCFS(), one_server()))
        return [wait.mean(), np.mean(wait > 0)]

    mean_wait, delayed = replicate(waits, seed=12).T
    exact = pollaczek_khinchine(rate, mean, mean**2 + variance)
    assert_agrees(mean_wait, exact)
    assert_agrees(delayed, load)  # Poisson arrivals see time averages
    assert exact == pytest.approx(load * mean / (1 - load), rel=0.03)  # M/M/1


def test_calibrated_model_is_exact_for_one_server():
    """Service times estimated from the runs themselves, through `ServiceMoments` and `fcfs_wait`."""
    rate = 0.7 / (10 * TICK_S)

    def waits(rng):
        lengths = rng.integers(1, 10, (2, REQUESTS))
        requests = qba.Requests(arrival_s=poisson(rng, rate), prompt_tokens=lengths[0], response_tokens=lengths[1])
        run = qba.simulate(requests, qba.FCFS(), one_server())
        moments = ServiceMoments.from_times(run.start_s, run.finish_s, run.true_long)
        return [steady(run).mean(), fcfs_wait(rate, moments, 1)]

    simulated, modelled = replicate(waits, seed=13).T
    assert_agrees(simulated / modelled, 1)


# --- two classes -----------------------------------------------------------------------------------------------------

SHORT_SHARE = 0.8
SHORT_TOKENS, LONG_TOKENS = 4, 20  # mean response; shorts geometric, longs uniform on 15 … 25
TWO_CLASSES = ServiceMoments(
    SHORT_SHARE,
    (1 + SHORT_TOKENS) * TICK_S,
    ((1 + SHORT_TOKENS) ** 2 + SHORT_TOKENS * (SHORT_TOKENS - 1)) * TICK_S**2,
    (1 + LONG_TOKENS) * TICK_S,
    ((1 + LONG_TOKENS) ** 2 + (11**2 - 1) / 12) * TICK_S**2,
)


def two_class_requests(rng: np.random.Generator, load: float) -> qba.Requests:
    long = rng.random(REQUESTS) >= SHORT_SHARE
    short_tokens = rng.geometric(1 / SHORT_TOKENS, REQUESTS)
    return qba.Requests(
        arrival_s=poisson(rng, load / TWO_CLASSES.mean_s),
        prompt_tokens=np.ones(REQUESTS),
        response_tokens=np.where(long, rng.integers(15, 26, REQUESTS), short_tokens),
        true_long=long,
    )


def class_waits(run) -> list[float]:
    wait, long = steady(run), steady(run, "predicted_long")
    return [wait[~long].mean(), wait[long].mean()]


@pytest.mark.parametrize("load", [0.5, 0.75])
def test_psf_is_cobhams_priority_queue(load):
    def waits(rng):
        return class_waits(qba.simulate(two_class_requests(rng, load), qba.PSF(), one_server()))

    short, long = replicate(waits, seed=14).T
    rate = load / TWO_CLASSES.mean_s
    residual = rate * TWO_CLASSES.square_s2 / 2
    rho_short = rate * SHORT_SHARE * TWO_CLASSES.short_mean_s
    exact = two_class_waits(rate, TWO_CLASSES, 1)
    assert exact == pytest.approx((residual / (1 - rho_short), residual / ((1 - rho_short) * (1 - load))))
    assert_agrees(short, exact[0])
    assert_agrees(long, exact[1])


@pytest.mark.parametrize(("short_to_long", "long_to_short"), [(0.1, 0), (0, 0.3), (0.15, 0.4)])
def test_psf_with_a_wrong_predictor_is_cobhams_queue_of_mixed_classes(short_to_long, long_to_short):
    load = 0.75
    rate = load / TWO_CLASSES.mean_s
    moments = TWO_CLASSES.predicted(short_to_long, long_to_short)

    def waits(rng):
        requests = qba.mislabel(
            two_class_requests(rng, load), short_to_long, long_to_short, seed=int(rng.integers(2**31))
        )
        run = qba.simulate(requests, qba.PSF(), one_server())
        return [*class_waits(run), steady(run).mean()]

    short, long, mean = replicate(waits, seed=15).T
    exact = two_class_waits(rate, moments, 1)
    assert_agrees(short, exact[0])
    assert_agrees(long, exact[1])
    assert_agrees(mean, moments.short_share * exact[0] + (1 - moments.short_share) * exact[1])


@pytest.fixture(scope="module")
def waits_of_all_policies():
    """Mean waits (replication, policy, class) and promoted fractions (replication, policy), same requests for all."""

    def waits(rng):
        requests = two_class_requests(rng, load=0.75)
        runs = [qba.simulate(requests, policy, one_server()) for policy in POLICIES]
        return [[*class_waits(run), run.promoted_fraction] for run in runs]

    samples = replicate(waits, seed=16)
    return samples[..., :2], samples[..., 2]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_no_policy_creates_or_destroys_work_on_average(waits_of_all_policies, policy):
    """Kleinrock's conservation law: Σ ρ_c W_c is the same for every order that does not look at service times."""
    load = 0.75
    rate = load / TWO_CLASSES.mean_s
    rho_short = rate * SHORT_SHARE * TWO_CLASSES.short_mean_s
    waits = waits_of_all_policies[0]
    conserved = rho_short * waits[..., 0] + (load - rho_short) * waits[..., 1]
    this = conserved[:, POLICIES.index(policy)]
    assert_agrees(this, load * pollaczek_khinchine(rate, TWO_CLASSES.mean_s, TWO_CLASSES.square_s2))
    if policy != POLICIES[0]:
        assert_agrees(this / conserved[:, 0], 1, width=0.005)  # against FCFS on the same requests: much sharper


def test_the_policies_share_that_work_out_differently(waits_of_all_policies):
    """Otherwise the law above would say nothing."""
    samples, promoted = waits_of_all_policies
    fcfs, psf, aa, qba_ = samples[..., 0].mean(axis=0)
    assert 1.3 * psf < qba_
    assert 1.3 * qba_ < min(aa, fcfs)
    assert (promoted[:, 2:] > 0.1).all()
