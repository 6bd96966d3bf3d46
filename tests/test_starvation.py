"""The count of overtakings, against a case worked by hand and against what the rules allow."""

from __future__ import annotations

import numpy as np
import pytest

import qba
from qba.starvation import STATISTICS, overtakes, promotion_delay


def test_overtakings_of_a_request_that_kv_holds_back():
    # Request 1 is aged from t = 1 on and due from t = 2 on, but fills the safe limit alone; a short comes every second and
    # keeps the cache from being empty until the shorts end. The shorts that start at 1 and 2 … 20: one before due, 19 past.
    requests = qba.Requests(
        arrival_s=[0, 0.5, *range(1, 21)],
        prompt_tokens=[1, 8, *[1] * 20],
        response_tokens=[1, 1, *[2] * 20],
        predicted_long=[False, True, *[False] * 20],
    )
    engine = qba.EngineConfig(token_budget=4, decode_block=1, kv_capacity=8, kv_safety=1.0, batch_overhead_s=1.0)
    run, batches = qba.simulate(requests, qba.QBA(quota=2), engine, record=True)
    assert run.promoted.values.nonzero()[0].tolist() == [1]
    found = overtakes(run, batches)
    assert found.before_due.values.tolist() == [1]
    assert found.past_due.values.tolist() == [19]
    assert found.largest_batch.item() == 1


def test_nobody_overtakes_a_due_request_where_the_cache_has_room():
    run, batches = qba.simulate(qba.synthetic(40, 3), qba.QBA(), qba.EngineConfig(kv_capacity=10**6), record=True)
    found = overtakes(run, batches)
    assert found.past_due.values.max() == 0
    assert 0 < found.before_due.values.max() <= 5 + found.largest_batch.item()
    assert found.sizes["long"] == run.predicted_long.values.sum()


def test_the_study_holds_each_runs_worst():
    study = promotion_delay([2, 5], rate=36, seeds=2, progress=False)
    assert list(study) == [*STATISTICS, "held_back"] and study.before_due.dims == ("quota", "seed")
    found = overtakes(*qba.simulate(qba.synthetic(36, 1), qba.QBA(quota=5), record=True))
    point = study.sel(quota=5, seed=1)
    assert point.past_due.item() == found.past_due.values.max() > 0
    # One start of a short is before due, or none at quota 1; all others in the stream go ahead of the one held back.
    assert study.held_back.values.tolist() == study.stream_length.values.tolist()
    assert point.passed_share.item() == pytest.approx(np.mean(found.past_due.values > 0))
