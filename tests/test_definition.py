"""Policies written by a user: compiled equal to the same definition in plain Python, and mistakes told in one line."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own import PAIRS, QBAByPick
from strategies import SMALL, known_cases
from twin import both

import qba
from qba.policies import LONG, NOBODY, OLDEST, SHORT, policy_by_name


@qba.policy
class InOrder:
    """First come, first served."""

    def key(self, request):
        return 0


@qba.policy(knows="length")
class Shortest:
    """Shortest predicted response first; a second of waiting counts like ``weight`` tokens."""

    weight: float = 0.0

    def key(self, request):
        return request.predicted_tokens + self.weight * request.arrival_s


@qba.policy(knows=("class", "client"), queues=2, memory=1)
class TakingTurns:
    """After ``k`` shorts a long."""

    k: int = 2

    def queue(self, request):
        return 1 if request.predicted_long else 0

    def choose(self, state, first, line):
        if first[1] >= 0 and (first[0] < 0 or state[2] >= self.k):
            return 1
        return 0

    def started(self, state, request, queue):
        state[2] = 0 if queue == 1 else state[2] + 1


@qba.policy(knows="client", queues="clients")
class FairShare:
    """The client that was served the fewest tokens; told of everything."""

    weight: float = 2.0

    def queue(self, request):
        return request.client

    def choose(self, state, first, line):
        best = -1
        for q in range(len(first)):
            if first[q] >= 0 and (best < 0 or state[q] < state[best]):
                best = q
        return best

    def started(self, state, request, queue):
        state[queue] += request.prompt_tokens

    def decoded(self, state, request, queue, tokens):
        state[queue] += self.weight * tokens


@qba.policy(knows="length", memory=2)
class Patient:
    """Shortest first, but the oldest once it has waited for ``patience`` batches; nobody new while many are in flight."""

    patience: int = 3
    most: int = 4

    def key(self, request):
        return request.predicted_tokens

    def choose(self, state, first, line):
        if state[1] >= self.most:
            return NOBODY
        if line.batches - line.oldest_batches >= self.patience:
            return OLDEST
        return 0

    def started(self, state, request, queue):
        state[1] += 1

    def prefilled(self, state, request, queue):
        state[2] += 1

    def finished(self, state, request, queue):
        state[1] -= 1


OWN = st.one_of(
    st.just(InOrder()),
    st.builds(Shortest, weight=st.sampled_from([0.0, 1.0, 1e9])),
    st.builds(TakingTurns, k=st.integers(0, 3)),
    st.builds(FairShare, weight=st.sampled_from([0.0, 2.0])),
    st.builds(Patient, patience=st.integers(0, 6), most=st.integers(1, 5)),
)


@SMALL
@given(OWN, known_cases())
def test_a_definition_compiled_is_the_definition_in_python(policy, case):
    both(case[0], policy, case[1])


def test_an_order_of_arrival_is_fcfs():
    requests = qba.synthetic(34, seed=3, requests=2000)
    for config in (qba.EngineConfig(), qba.EngineConfig(on_overflow="preempt", kv_capacity=9000)):
        mine, theirs = (qba.simulate(requests, policy, config) for policy in (InOrder(), qba.FCFS()))
        for name in ("start_s", "finish_s", "batches", "blocked_admissions"):
            np.testing.assert_array_equal(mine[name], theirs[name])


@pytest.mark.parametrize(("mine", "theirs"), [*PAIRS, (QBAByPick(quota=2), qba.QBA(quota=2))])
def test_built_in_policies_written_this_way_are_the_same(mine, theirs):
    requests = qba.mislabel(qba.synthetic(34, seed=3, requests=2000), 0.1, 0.2)
    one, other = (qba.simulate(requests, policy) for policy in (mine, theirs))
    for name in ("start_s", "finish_s", "promoted_fraction" if mine.name == "QBAByPick" else "batches"):
        np.testing.assert_array_equal(one[name], other[name])


def test_own_policies_join_sweeps_by_their_parameters():
    table = qba.sweep([qba.FCFS(), Shortest()], rate=[30, 32], seeds=2, progress=False, weight=[0, 1e12])
    fcfs, own = (table.wait_mean_s.sel(policy=name) for name in ("FCFS", "Shortest"))
    assert (own.sel(weight=1e12) == fcfs.sel(weight=1e12)).all() and (own.sel(weight=0) < fcfs.sel(weight=0)).all()
    assert policy_by_name("Shortest", weight=3) == Shortest(weight=3.0)


def test_another_definition_under_one_name_is_told_apart():
    first = QBAByPick.code

    @qba.policy(knows="class")
    class Quota2:
        def pick(self, state, short, long, aged):
            return LONG if long >= 0 else SHORT

    assert Quota2.code != first and policy_by_name("Quota2") == Quota2()


def make(methods: str, **options):
    space = {"qba": qba}
    body = "\n".join(f"    {line}" for line in methods.splitlines())
    exec(f"class Mine:\n{body}\n", space)
    return qba.policy(space["Mine"], **options)


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ("def keys(self, request): return 0", {}, "keys is none of its methods (did you mean key?)"),
        ("def key(self): return 0", {}, "its key must take 2 arguments, self included"),
        ("weight: float = 1.0", {}, "it has no method"),
        (
            "weight: str = 'a'\ndef key(self, request): return 0",
            {},
            "parameter weight must be an int, a float or a bool",
        ),
        ("def key(self, request): return 0", {"knows": "future"}, "knows = 'future'"),
        ("def key(self, request): return 0", {"queues": 0}, "queues = 0"),
        ("def key(self, request): return 0", {"queues": "clients"}, "say knows='client'"),
        ("def key(self, request): return 0", {"memory": -1}, "memory = -1"),
        ("def pick(self, state, short, long, aged): return 0", {}, "say knows='class'"),
        (
            "def pick(self, state, short, long, aged): return 0",
            {"knows": "class", "memory": 2},
            "a state of four whole numbers",
        ),
        ("def queue(self, request): return 0", {"queues": 2}, "it has a queue but no choose"),
        ("rate: float = 1.0\ndef key(self, request): return 0", {}, "has the name of an axis of sweeps"),
        (
            "aging_window = 3\ndef pick(self, state, short, long, aged): return 0",
            {"knows": "class"},
            "aging_window is not open",
        ),
    ],
)
def test_a_definition_that_is_none_is_refused(methods, options, message):
    with pytest.raises(qba.InputError) as told:
        make(methods, **options)
    assert str(told.value).startswith("policy Mine: ") and message in str(told.value)


def test_a_built_in_name_is_refused():
    with pytest.raises(qba.InputError, match="QBA: there is a built-in policy of that name"):

        @qba.policy
        class QBA:
            def key(self, request):
                return 0


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ("def key(self, request): return request.response_tokens", {"knows": "class"}, "its key fails: it reads response_tokens, but it knows class: say knows='oracle'"),
        ("def key(self, request): return request.predicted_long", {}, "say knows='class'"),
        ("def started(self, state, request, queue): state[0] = request.client", {"knows": "length"}, "its started fails: it reads client"),
        ("def key(self, request): return self.weight", {}, "its key fails"),
        ("def arrived(self, state, request, queue, first): state[0] = request.client", {}, "its arrived fails: it reads client"),
        ("def key(self, request): return open('x')", {}, "its key fails: FileNotFoundError"),
        ("def key(self, request): return [1, 'a'][request.number]", {}, "its key cannot be compiled"),
        ("def key(self, request): return float('nan')", {}, "its key returned NaN"),
        ("def queue(self, request): return 3\ndef choose(self, state, first, line): return 0", {"queues": 2}, "its queue returned a number that is none of its queues"),
        ("def choose(self, state, first, line): return 1", {"queues": 2}, "in which no request waits"),
        ("def choose(self, state, first, line): return 5", {}, "in which no request waits"),
        ("def choose(self, state, first, line): return -1", {}, "picked nobody though the engine was empty"),
        ("def started(self, state, request, queue): state[5] = 1", {}, "its started fails: IndexError"),
        ("def choose(self, state, first, line): return first[9 * line.arrived]", {}, "fails: IndexError"),
        ("def key(self, request): return 1 / (request.number - 3)", {}, "fails: ZeroDivisionError"),
        ("def key(self, request): return 'a'", {}, "its key returned 'a', but it must return a number"),
        ("def pick(self, state, short, long, aged): return -3", {"knows": "class"}, "named a class or queue"),
        ("def pick(self, state, short, long, aged): return 7", {"knows": "class"}, "named a class or queue"),
        ("def pick(self, state, short, long, aged): return state[9]", {"knows": "class"}, "IndexError"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_policy_names_it_and_the_method(methods, options, message):
    made = make(methods, **options)
    with pytest.raises(qba.InputError) as told:
        qba.simulate(qba.synthetic(30, requests=50), made())
    assert str(told.value).startswith("policy Mine: ") and message in str(told.value), told.value


@pytest.mark.parametrize(
    ("value", "message"), [(float("inf"), "weight = inf"), ("a", "weight = 'a'"), (True, "weight = True")]
)
def test_parameters_are_checked(value, message):
    with pytest.raises(qba.InputError, match=message):
        Shortest(weight=value)
    with pytest.raises(qba.InputError, match="has no parameter 'wait'"):
        Shortest(wait=1)


def test_an_aging_quantile_of_ones_own_is_checked():
    with pytest.raises(qba.InputError, match="aging_quantile = 80"):
        QBAByPick(aging_quantile=80)


def test_predictions_stay_perfect_when_lengths_change():
    requests = qba.synthetic(30, requests=50)
    doubled = requests.replace(response_tokens=2 * requests.response_tokens)
    assert (doubled.predicted_tokens == doubled.response_tokens).all()
    guessed = requests.replace(predicted_tokens=np.full(50, 7))
    assert (guessed.replace(response_tokens=2 * requests.response_tokens).predicted_tokens == 7).all()
    assert (requests.client == 0).all() and requests.client.strides == (0,)
    sent = pickle.loads(pickle.dumps(requests))
    assert sent.predicted_tokens is sent.response_tokens and sent.client.strides == (0,)
    with pytest.raises(qba.InputError, match=r"client\[1\] = 50"):
        requests.replace(client=[0, 50, *([0] * 48)])
