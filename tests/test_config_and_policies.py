"""Parameters of engines and policies: defaults, ranges and messages."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

import qba
from qba.policies import BUILT_IN, policy_by_name


def test_the_default_engine_is_the_papers():
    config = qba.EngineConfig()
    assert dataclasses.asdict(config) == {
        "token_budget": 128,
        "decode_block": 8,
        "kv_capacity": 8192,
        "kv_safety": 0.7,
        "batch_overhead_s": 0.003,
        "token_time_s": 2e-5,
        "knee_tokens": 64,
    }
    assert config.kv_safe_tokens == 5734.4
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.token_budget = 1
    with pytest.raises(TypeError):
        qba.EngineConfig(128)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"token_budget": 0}, "token_budget = 0"),
        ({"token_budget": 12.5}, "token_budget = 12.5"),
        ({"decode_block": "8"}, "decode_block = '8'"),
        ({"kv_capacity": -1}, "kv_capacity = -1"),
        ({"kv_safety": 0}, "kv_safety = 0, but it must be a finite number above 0 and at most 1"),
        ({"kv_safety": 1.01}, "kv_safety = 1.01"),
        ({"kv_safety": float("nan")}, "kv_safety = nan"),
        ({"batch_overhead_s": 0}, "batch_overhead_s = 0"),
        ({"token_time_s": -1e-5}, "token_time_s"),
        ({"knee_tokens": float("inf")}, "knee_tokens = inf"),
        ({"knee_tokens": None}, "knee_tokens = None"),
        ({"token_budget": True}, "token_budget = True"),
    ],
)
def test_an_impossible_engine_is_refused(parameters, message):
    with pytest.raises(qba.InputError, match=message):
        qba.EngineConfig(**parameters)


def test_policies_are_values():
    assert qba.QBA() == qba.QBA(quota=5, aging_quantile=0.8) != qba.QBA(quota=4)
    assert qba.FCFS() != qba.PSF()
    assert [cls().name for cls in BUILT_IN] == ["FCFS", "PSF", "AA", "QBA"]
    for cls in BUILT_IN:
        assert pickle.loads(pickle.dumps(cls())) == cls()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qba.QBA(quota=0), "QBA: quota = 0, but it must be a whole number of at least 1"),
        (lambda: qba.QBA(quota=2.5), "quota = 2.5"),
        (lambda: qba.QBA(aging_quantile=0), "aging_quantile = 0"),
        (lambda: qba.AA(aging_quantile=1.0001), "AA: aging_quantile = 1.0001"),
        (lambda: qba.AA(aging_quantile=float("nan")), "aging_quantile = nan"),
        (lambda: policy_by_name("SJF"), "unknown policy 'SJF': there are FCFS, PSF, AA, QBA"),
        (lambda: policy_by_name("AA", quota=3), "policy AA has no parameter 'quota': it has aging_quantile"),
        (lambda: policy_by_name("PSF", quota=3), "it has none"),
    ],
)
def test_an_impossible_policy_is_refused(make, message):
    with pytest.raises(qba.InputError, match=message):
        make()


def test_simulate_refuses_what_it_cannot_serve():
    requests = qba.Requests(arrival_s=[0, 1], prompt_tokens=[10, 5735], response_tokens=[1, 1])
    with pytest.raises(
        qba.InputError, match=r"request 1 has prompt_tokens = 5735, but the engine admits at most 5734.4"
    ):
        qba.simulate(requests, qba.FCFS())
    with pytest.raises(qba.InputError, match="policy is <class .*QBA'>, but it must be a qba.Policy instance"):
        qba.simulate(requests, qba.QBA)
    with pytest.raises(qba.InputError, match="requests is 3"):
        qba.simulate(3, qba.FCFS())
    with pytest.raises(qba.InputError, match="config is None"):
        qba.simulate(requests, qba.FCFS(), None)
