"""Parameters of engines and policies: defaults, ranges and messages."""

from __future__ import annotations

import dataclasses
import pickle
from typing import NamedTuple

import pytest

import qba
from qba.policies import BUILT_IN, LONG, PAPER, Policy, policy_by_name


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
        "kv_projection": "reserve-prompt",
        "decode_partial": True,
        "on_blocked": "stop",
        "on_overflow": "count",
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
        ({"kv_projection": "all"}, "kv_projection = 'all', but it must be one of 'reserve-prompt', 'prompt'"),
        ({"decode_partial": 1}, "decode_partial = 1"),
        ({"decode_partial": False, "decode_block": 200}, "nothing could ever decode"),
        ({"kv_capacity": 10**30}, "at most 2147483647"),
        ({"budget": 3}, "EngineConfig has no parameter 'budget': it has token_budget, decode_block"),
    ],
)
def test_an_impossible_engine_is_refused(parameters, message):
    with pytest.raises(qba.InputError, match=message):
        qba.EngineConfig(**parameters)


def test_policies_are_values():
    assert qba.QBA() == qba.QBA(quota=5, aging_quantile=0.8) != qba.QBA(quota=4)
    assert qba.FCFS() != qba.PSF()
    assert [cls().name for cls in PAPER] == ["FCFS", "PSF", "AA", "QBA"]
    assert set(PAPER) <= set(BUILT_IN)
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
        (lambda: qba.AA(aging_classes="long"), "aging_classes = 'long', but it must be one of 'all'"),
        (lambda: qba.QBA(promotion_clears=None), "promotion_clears = None"),
        (lambda: qba.AA(gamma=0.8), "AA has no parameter 'gamma': it has aging_quantile, aging_classes"),
        (lambda: qba.QBA(quota=10**30), "at most 2147483647"),
        (lambda: policy_by_name("SJF"), "unknown policy 'SJF'"),
        (lambda: policy_by_name("AA", quota=3), "AA has no parameter 'quota': it has aging_quantile, aging_classes"),
        (lambda: policy_by_name("PSF", quota=3), "it has none"),
    ],
)
def test_an_impossible_policy_is_refused(make, message):
    with pytest.raises(qba.InputError, match=message):
        make()


def test_reserving_all_refuses_what_it_can_never_hold():
    requests = qba.Requests(arrival_s=[0, 1], prompt_tokens=[10, 700], response_tokens=[1, 5035])
    message = r"request 1 has prompt_tokens \+ response_tokens = 5735, but the engine takes at most 5734.4"
    with pytest.raises(qba.InputError, match=message):
        qba.simulate(requests, qba.FCFS(), qba.EngineConfig(kv_projection="reserve-all"))
    qba.simulate(requests, qba.FCFS())


def test_simulate_refuses_what_it_cannot_serve():
    requests = qba.Requests(arrival_s=[0, 1], prompt_tokens=[10, 5735], response_tokens=[1, 1])
    with pytest.raises(
        qba.InputError, match=r"request 1 has prompt_tokens = 5735, but the engine takes at most 5734.4"
    ):
        qba.simulate(requests, qba.FCFS())
    with pytest.raises(qba.InputError, match="policy is <class .*QBA'>, but it must be a qba.Policy instance"):
        qba.simulate(requests, qba.QBA)
    with pytest.raises(qba.InputError, match="requests is 3"):
        qba.simulate(3, qba.FCFS())
    with pytest.raises(qba.InputError, match="config is None"):
        qba.simulate(requests, qba.FCFS(), None)


class NobodyRule(NamedTuple):
    """Always names the predicted-long class."""

    aging_quantile: float

    def pick(rule, state, short, long, aged):
        return LONG


@dataclasses.dataclass(frozen=True)
class Nobody(Policy):
    rule_class = NobodyRule


def test_a_rule_that_picks_where_nobody_waits_is_told_so():
    requests = qba.Requests(arrival_s=[0, 1], prompt_tokens=[1, 1], response_tokens=[1, 1], true_long=[False, True])
    with pytest.raises(qba.InputError, match="policy Nobody: its pick or choose named a class or queue"):
        qba.simulate(requests, Nobody())


def test_a_clock_too_late_to_move_still_gives_an_answer():
    requests = qba.Requests(arrival_s=[1e12], prompt_tokens=[1], response_tokens=[1])
    run = qba.simulate(requests, qba.FCFS(), qba.EngineConfig(batch_overhead_s=1e-9))
    assert run.makespan_s == 0 and run.throughput_tokens_per_s == float("inf")
