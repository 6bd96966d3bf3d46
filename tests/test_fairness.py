"""Slowdown, starvation, Jain's index and goodput, on cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import table
from twin import unit_engine

import qba
from qba.fairness import FAIRNESS, fairness, jain


def test_measures_of_a_case_worked_by_hand():
    # Batches of one second and 4 tokens. Request 0 prefills in [0, 1] and decodes in [1, 2]; request 1 in [1, 2] and
    # [2, 3] beside it; request 2, a long one of client 1, comes at 0 and starts last.
    requests = table([(0, 4, 1, "S"), (0, 3, 1, "S"), (0, 4, 1, "L")]).replace(client=[0, 0, 1])
    run = qba.simulate(requests, qba.FCFS(), unit_engine(token_budget=4, decode_block=1))
    assert run.start_s.values.tolist() == [0, 1, 2] and run.finish_s.values.tolist() == [2, 3, 5]
    found = fairness(requests, run, ttft_bound_s=3.0, starved_s=1.5)
    assert set(found) == set(FAIRNESS)
    assert found["slowdown_mean"] == pytest.approx((0 / 2 + 1 / 2 + 2 / 3) / 3)
    assert found["slowdown_mean_true_long"] == pytest.approx(2 / 3)
    assert found["slowdown_mean_true_short"] == pytest.approx(1 / 4)
    assert found["wait_max_s"] == 2 and found["starved"] == 1
    groups = np.array([1 + 1 / 4, 1 + 2 / 3])
    assert found["jain_classes"] == found["jain_clients"] == pytest.approx(groups.sum() ** 2 / 2 / (groups**2).sum())
    assert found["goodput"] == pytest.approx(2 / 5)  # request 2 has its first token at 5


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_jains_index_lies_between_one_over_n_and_one(values):
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9


def test_jains_index_at_its_ends():
    assert jain([3, 3, 3]) == pytest.approx(1) and jain([5, 0, 0, 0]) == pytest.approx(0.25) and jain([0, 0]) == 1


def test_limits_and_runs_are_checked():
    requests = qba.synthetic(30, requests=20)
    run = qba.simulate(requests, qba.FCFS())
    with pytest.raises(qba.InputError, match="starved_s = 0"):
        fairness(requests, run, starved_s=0)
    with pytest.raises(qba.InputError, match="20 requests, but 10 are given"):
        fairness(qba.synthetic(30, requests=10), run)
    with_one_class = qba.Requests(arrival_s=[0, 1], prompt_tokens=[1, 1], response_tokens=[1, 1])
    assert np.isnan(fairness(with_one_class, qba.simulate(with_one_class, qba.FCFS()))["slowdown_mean_true_long"])
