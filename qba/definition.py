"""Writing a policy: one small class of plain Python, which the engine compiles.

There are two kinds. A policy with a ``pick`` chooses between two classes, as the paper's do (see `qba.policies`). Any other
orders all who wait by keys::

    @qba.policy(knows="length")
    class LinearAging:
        \"\"\"Shortest predicted response first; a second of waiting counts like ``weight`` tokens.\"\"\"

        weight: float = 10.0

        def key(self, request):
            return request.predicted_tokens + self.weight * request.arrival_s

Its methods, each of which may be left out, are

``key(self, request)``
    A number, fixed when the request arrives: the smallest goes first, the older request where two are equal. Left out:
    first come, first served.
``queue(self, request)``
    The number, from 0 on, of the queue that the request waits in, of ``queues`` in all.
``choose(self, state, first, line)``
    Which queue is next: its number, `OLDEST` for the oldest of all who wait, or `NOBODY`, which ends this boundary's
    admissions. ``first[q]`` is the number of the request that is first in queue q, or -1 where nobody waits. ``line`` tells
    ``now`` (seconds), ``batches`` (served so far), ``arrived`` (requests so far), and of the oldest who waits its number
    ``oldest``, ``oldest_arrival`` and ``oldest_batches`` (served when it came). It may read ``state`` but not change it.
``arrived(self, state, request, queue, first)``
    The request has come and is about to join the queue; ``first`` as above, without it.
``started(self, state, request, queue)``, ``prefilled(...)``, ``finished(...)``
    The request was let in; its prefill ended; it is done.
``decoded(self, state, request, queue, tokens)``
    It is given response tokens in the coming batch. (A policy with this method is told of every batch, which costs time.)

``self`` has the parameters, ``state`` is an array of numbers that starts at 0: one for each queue, then ``memory``
more, and with ``notes`` one for each request, in the order of their numbers.
``request`` has what the policy may know: always ``number`` (in order of arrival), ``arrival_s`` and ``prompt_tokens``, and
more by ``knows``, see `KNOWLEDGE`. Reading anything else is refused. Admission control is the engine's: a candidate that the
KV limit refuses ends the boundary's admissions, or with ``on_blocked="skip"`` is passed over if it is the first of its queue. A
policy with a ``pick`` knows the class alone; its ``state`` has four whole numbers. Indices are checked.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import CodeType
from typing import Any, get_type_hints

import numpy as np

from qba.config import EngineConfig
from qba.errors import InputError
from qba.policies import Policy, register
from qba.predictor import predict
from qba.requests import Requests
from qba.validate import named_parameters, number, whole_number
from qba.workload import synthetic

ALWAYS = {"number": "r", "arrival_s": "table.arrival[r]", "prompt_tokens": "table.prompt[r]"}
KNOWLEDGE = {
    "nothing": {},
    "class": {"predicted_long": "table.predicted_long[r]"},
    "length": {"predicted_tokens": "table.predicted_tokens[r]"},
    "client": {"client": "table.client[r]"},
    "oracle": {"response_tokens": "table.response[r]", "true_long": "table.true_long[r]"},
}
"""What a policy may know, and what that lets it read of a request (and where the engine finds it): the predicted class, the
predicted response tokens, whose request it is, or the truth."""

TAKEN = {
    *inspect.signature(synthetic).parameters, *inspect.signature(predict).parameters, *(f.name for f in fields(EngineConfig)),
}  # fmt: skip
"""Names that a parameter may not have: axes of `qba.sweep`, which would set it."""
AGING_LIMITS = {"above": 0, "at_most": 1}

PICK = {"pick": 5, "started": 3, "prefilled": 4}
ORDER = {
    "key": 2, "queue": 2, "choose": 4, "arrived": 5, "started": 4, "prefilled": 4, "finished": 4, "decoded": 5,
}  # fmt: skip
"""Methods of either kind, and how many arguments they take."""


def policy(
    cls: type | None = None,
    *,
    knows: str | tuple[str, ...] = "nothing",
    queues: int | str = 1,
    memory: int = 0,
    notes: bool = False,
    limits: Mapping[str, Mapping[str, float]] | None = None,
) -> Any:
    """Make a class a policy (see the module's text for what it may hold).

    Parameters
    ----------
    cls : class
        With annotated numbers (int, float or bool) as parameters, and methods.
    knows : str or tuple of str
        Of `KNOWLEDGE`.
    queues : int or "clients"
        How many queues ``queue`` may name; one for each client of the requests.
    memory : int
        Numbers that ``state`` holds besides one for each queue.
    notes : bool
        Whether ``state`` holds one number more for each request, after all others.
    limits : mapping, optional
        Bounds of parameters, such as ``{"weight": {"above": 0}}``: ``above``, ``at_least`` and ``at_most`` for a float,
        ``at_least`` for an int.

    Returns
    -------
    type
        A frozen dataclass, a subclass of `qba.policies.Policy`, known by its name to `policy_by_name`.

    Raises
    ------
    InputError
        If the class is not one of the two kinds, or a method or parameter is not as it should be.
    """
    if cls is None:
        return lambda cls: policy(cls, knows=knows, queues=queues, memory=memory, notes=notes, limits=limits)
    known = (knows,) if isinstance(knows, str) else tuple(knows)
    for what in known:
        if what not in KNOWLEDGE:
            raise InputError(f"policy {cls.__name__}: knows = {what!r}, but there are {', '.join(KNOWLEDGE)}")
    methods = _methods(cls)
    by_class = "pick" in methods
    if by_class and "class" not in known:
        raise InputError(f"policy {cls.__name__}: it has a pick, which chooses between classes: say knows='class'")
    if queues != "clients":
        queues = whole_number(f"policy {cls.__name__}", "queues", queues, at_least=1)
    elif "client" not in known:
        raise InputError(f"policy {cls.__name__}: queues='clients', but it does not know them: say knows='client'")
    parameters = _parameters(cls)
    if by_class and (queues != 1 or memory or notes or set(known) - {"class", "nothing"}):
        raise InputError(
            f"policy {cls.__name__}: with a pick there are two queues and a state of four whole numbers, and only the class is "
            "known: queues, memory, notes and other knowledge are for policies that order by keys"
        )
    if "queue" in methods and "choose" not in methods:
        raise InputError(
            f"policy {cls.__name__}: it has a queue but no choose, so that only queue 0 would ever be served"
        )
    limits = dict(limits or {})
    for name in limits:
        if name not in parameters:
            raise InputError(f"policy {cls.__name__}: limits name {name!r}, which is none of its parameters")
    rule = namedtuple(f"{cls.__name__}Rule", ["aging_quantile", *(n for n in parameters if n != "aging_quantile")])
    inside = dict(methods) if by_class else {"methods": methods, **_sight(cls.__name__, known)}
    # Found again by that name, when numba's cache or a worker process reads it.
    place = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.rule_class"}
    rule_class = type(rule.__name__, (rule,), {"__slots__": ()} | inside | place)
    made = type(
        cls.__name__,
        (OwnPolicy,),
        {
            **{name: value for name, value in vars(cls).items() if name not in methods and not _is_slot(name)},
            "__annotations__": dict(parameters), "__qualname__": cls.__qualname__, "rule_class": rule_class, "knows": known, "queues": queues,
            "memory": whole_number(f"policy {cls.__name__}", "memory", memory, at_least=0),
            "notes": bool(notes), "limits": limits, "code": _digest(methods, known, queues, memory, notes),
        },
    )  # fmt: skip
    return register(named_parameters(dataclass(frozen=True)(made)))


class OwnPolicy(Policy):
    """What `policy` makes a class into."""

    knows: tuple[str, ...]
    queues: int | str
    memory: int
    notes: bool
    limits: Mapping[str, Mapping[str, float]]
    code: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value, limits = getattr(self, field.name), self.limits.get(field.name, {})
            if field.type is bool:
                if not isinstance(value, (bool, np.bool_)):
                    raise InputError(f"{self.name}: {field.name} = {value!r}, but it must be True or False")
                checked = bool(value)
            elif field.type is int:
                checked = whole_number(self.name, field.name, value, **{"at_least": -(2**31)} | dict(limits))
            else:
                bounds = AGING_LIMITS if field.name == "aging_quantile" else limits
                checked = number(self.name, field.name, value, **bounds)
            object.__setattr__(self, field.name, checked)

    def room(self, requests: Requests) -> tuple[int, int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        if not hasattr(self.rule_class, "methods"):
            return super().room(requests)
        _, _, (none, _, no_label) = super().room(requests)
        queues = int(requests.client.max()) + 1 if self.queues == "clients" else self.queues
        known = (
            requests.predicted_tokens if "length" in self.knows else none,
            requests.client if "client" in self.knows else none,
            requests.true_long if "oracle" in self.knows else no_label,
        )
        return queues, self.memory + self.notes * len(requests), known


def explain(policy: Policy, requests: Requests, error: Exception) -> str:
    """Why a policy could not be compiled, in one line: what Python itself says of it where it objects too."""
    from numba import njit
    from numba.core.errors import NumbaError

    last = f"cannot be compiled: {_last_line(error)}"
    if not isinstance(error, NumbaError):
        last = f"one of its methods fails: {type(error).__name__}: {error}"
    methods = getattr(policy.rule_class, "methods", None)
    if methods is None:
        return f"policy {policy.name}: {last}"
    rule, (queues, own, _) = policy.rule, policy.room(requests)
    state, first = np.zeros(queues + own), np.zeros(queues, np.int64)
    request = sight(policy, requests, 0)
    from qba.engine.memory import Line

    arguments = {
        "key": (request,), "queue": (request,), "choose": (state, first, Line(0.0, 0, 1, 0, 0.0, 0)),
        "started": (state, request, 0), "prefilled": (state, request, 0), "finished": (state, request, 0),
        "arrived": (state, request, 0, first), "decoded": (state, request, 0, 1),
    }  # fmt: skip
    for name, function in methods.items():
        try:
            function(rule, *arguments[name])
        except AttributeError as problem:
            return f"policy {policy.name}: its {name} fails: {_unknown(policy, problem)}"
        except Exception as problem:
            return f"policy {policy.name}: its {name} fails: {type(problem).__name__}: {problem}"
        try:
            value = njit(function)(rule, *arguments[name])
        except NumbaError as problem:
            return f"policy {policy.name}: its {name} cannot be compiled: {_last_line(problem)}"
        if name in ("key", "queue", "choose") and not isinstance(value, (int, float, np.number, np.bool_)):
            return f"policy {policy.name}: its {name} returned {value!r:.40}, but it must return a number"
    return f"policy {policy.name}: {last}"


def sight(policy: Policy, requests: Requests, r: int) -> Any:
    """Request r as the policy sees it."""
    columns = {
        "number": np.arange(len(requests)), "arrival_s": requests.arrival_s, "prompt_tokens": requests.prompt_tokens,
        "predicted_long": requests.predicted_long, "predicted_tokens": requests.predicted_tokens,
        "client": requests.client, "response_tokens": requests.response_tokens, "true_long": requests.true_long,
    }  # fmt: skip
    seen = policy.rule_class.seen
    return seen(*(columns[name][r].item() for name in seen._fields))


def _methods(cls: type) -> dict[str, Callable]:
    methods = {name: f for name, f in vars(cls).items() if inspect.isfunction(f) and not name.startswith("__")}
    kind = PICK if "pick" in methods else ORDER
    for name, function in methods.items():
        if name not in kind:
            near = difflib.get_close_matches(name, kind, n=1)
            raise InputError(
                f"policy {cls.__name__}: {name} is none of its methods"
                f"{f' (did you mean {near[0]}?)' if near else ''}; there are {', '.join(kind)}"
            )
        if len(inspect.signature(function).parameters) != kind[name]:
            raise InputError(f"policy {cls.__name__}: its {name} must take {kind[name]} arguments, self included")
    if not methods:
        raise InputError(f"policy {cls.__name__}: it has no method; there are {', '.join({**PICK, **ORDER})}")
    return methods


def _parameters(cls: type) -> dict[str, type]:
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise InputError(f"policy {cls.__name__}: {error}") from None
    for name in vars(cls):
        if name in ("aging_classes", "aging_sample", "aging_window"):
            raise InputError(f"policy {cls.__name__}: {name} is not open to policies of one's own")
    for name, kind in hints.items():
        if name in TAKEN:
            raise InputError(
                f"policy {cls.__name__}: parameter {name} has the name of an axis of sweeps; choose another"
            )
        if kind not in (int, float, bool):
            raise InputError(f"policy {cls.__name__}: parameter {name} must be an int, a float or a bool")
    return hints


def _sight(name: str, known: tuple[str, ...]) -> dict[str, Any]:
    """A named tuple of what may be known of a request, and the function that fills it in compiled code."""
    columns = dict(ALWAYS)
    for what in known:
        columns |= KNOWLEDGE[what]
    seen = namedtuple("request", columns)
    # numba has no way to build a tuple of fields chosen by the rule, but compiles the text of one.
    space: dict[str, Any] = {"seen": seen}
    exec(f"def see(rule, table, r):\n    return seen({', '.join(columns.values())})", space)
    return {"seen": seen, "see": staticmethod(space["see"])}


def _unknown(policy: Policy, problem: AttributeError) -> str:
    for what, columns in KNOWLEDGE.items():
        if problem.name in columns:
            return f"it reads {problem.name}, but it knows {', '.join(policy.knows)}: say knows={what!r} if it may"
    there = ", ".join(policy.rule_class.seen._fields)
    return f"{problem}; a request has {there}, and self {', '.join(policy.rule_class._fields[1:]) or 'no parameter'}"


def _digest(methods: dict[str, Callable], *options: object) -> str:
    """Of what the methods do, so that results of another definition under the same name are not taken for this one's.

    Plain numbers that they read from around them count as what they are.
    """
    texts = [repr(options)]
    for name, function in methods.items():
        around = {n: function.__globals__.get(n) for n in function.__code__.co_names}
        around |= inspect.getclosurevars(function).nonlocals
        numbers = {n: value for n, value in sorted(around.items()) if isinstance(value, (int, float, str, tuple))}
        texts.append(f"{name} {_code(function.__code__)} {numbers}")
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _code(code: CodeType) -> str:
    """What a function does, without where it stands; functions within it as their own text."""
    constants = [_code(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def _last_line(error: Exception) -> str:
    """numba's reason, which stands above the advice and the traceback that it adds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [
        line for line in lines if not line.startswith(("Failed in", "During", "File", "-", "def ", "^", "There are"))
    ]
    return (told or lines or [type(error).__name__])[0]


def _is_slot(name: str) -> bool:
    return name in ("__dict__", "__weakref__", "__annotations__", "__annotations_cache__", "__annotate_func__")
