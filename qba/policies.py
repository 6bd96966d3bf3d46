"""Scheduling policies: which waiting request is the next candidate for admission (paper, section III).

The engine serves decodes and prefills under way first; a policy only orders what waits. Inside a predicted class the
order is always first come, first served, so a policy's whole choice is between the oldest waiting predicted-short
request, the oldest waiting predicted-long one, and *promoting* the latter ahead of its turn.

To add a policy, write one rule and one class here and name the class in `BUILT_IN`; sweeps, figures and the tests of
invariants take it from there. A rule is a named tuple of numbers with up to three methods in plain Python,
which `qba.engine` compiles. They may use arithmetic, comparisons and ``state``, an array of `STATE_SIZE` integers that
starts at 0 and that the engine records (`COUNTER`, `DEBT`):

``pick(rule, state, short, long, aged)``
    Return `SHORT`, `LONG` or `PROMOTED`. ``short`` and ``long`` are the places in order of arrival of the oldest waiting
    request of that predicted class, or -1 where none waits (never both); ``aged`` tells whether the long one has waited
    longer than the aging threshold and may be promoted at this batch boundary. It may read ``state`` but not
    change it: boundaries that are all alike are served at once.
``started(rule, state, choice)``, if it is there
    The request picked was admitted.
``prefilled(rule, state, long, promoted)``, if it is there
    A request completed its prefill; called in the order of completion.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import numpy as np

from qba.errors import InputError
from qba.requests import Requests
from qba.validate import named_parameters, number, one_of, whole_number

SHORT, LONG, PROMOTED = 0, 1, 2
NOBODY, OLDEST = -1, -3
COUNTER, DEBT, PROMOTING = 0, 1, 2
STATE_SIZE = 4
NO_AGING = float("nan")
NOT_KNOWN = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool)


class FCFSRule(NamedTuple):
    aging_quantile: float

    def pick(rule, state, short, long, aged):
        if long < 0 or 0 <= short < long:
            return SHORT
        return LONG


class PSFRule(NamedTuple):
    aging_quantile: float

    def pick(rule, state, short, long, aged):
        return SHORT if short >= 0 else LONG


class AARule(NamedTuple):
    aging_quantile: float

    def pick(rule, state, short, long, aged):
        if aged:
            return PROMOTED
        return SHORT if short >= 0 else LONG


class QBARule(NamedTuple):
    aging_quantile: float
    quota: int
    clears_at_start: bool

    def pick(rule, state, short, long, aged):
        if aged and state[DEBT] and not state[PROMOTING]:
            return PROMOTED
        return SHORT if short >= 0 else LONG

    def started(rule, state, choice):
        if choice == PROMOTED:
            state[PROMOTING] = 1
            if rule.clears_at_start:
                state[DEBT] = state[COUNTER] = 0

    def prefilled(rule, state, long, promoted):
        if promoted:
            state[PROMOTING] = 0
            if not rule.clears_at_start:
                state[DEBT] = state[COUNTER] = 0
        elif not long and not state[DEBT]:
            state[COUNTER] += 1
            if state[COUNTER] == rule.quota:
                state[DEBT] = 1


class Policy:
    """A scheduling policy: frozen parameters and the rule that the engine compiles."""

    rule_class: ClassVar[type]
    aging_classes: ClassVar[str] = "all"
    aging_sample: ClassVar[str] = "history"
    aging_window: ClassVar[int | None] = None

    @property
    def name(self) -> str:
        """Name in tables, datasets and figures."""
        return type(self).__name__

    def room(self, requests: Requests) -> tuple[int, int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """What a policy that orders by keys asks for: queues, numbers of its own, and the columns that it knows.

        The columns are predicted response tokens, client and true label, each empty where it is not known.
        """
        return 0, 0, NOT_KNOWN

    @property
    def rule(self) -> NamedTuple:
        """The compiled part's parameters; a policy without aging has a threshold quantile of NaN."""
        own = {f.name for f in fields(self)} & set(self.rule_class._fields)
        return self.rule_class(**{"aging_quantile": NO_AGING} | {name: getattr(self, name) for name in own})


@named_parameters
@dataclass(frozen=True)
class FCFS(Policy):
    """First come, first served: order of arrival, labels unused (paper, section III-A1)."""

    rule_class = FCFSRule


@named_parameters
@dataclass(frozen=True)
class PSF(Policy):
    """Predicted-short first: predicted-long requests only while no predicted-short one waits (section III-A3)."""

    rule_class = PSFRule


@named_parameters
@dataclass(frozen=True)
class AA(Policy):
    """Aggressive aging: every aged predicted-long request goes ahead of the predicted-short ones (section III-A5).

    Parameters
    ----------
    aging_quantile : float
        γ in (0, 1]; a request is aged when it has waited longer than this quantile of the waits of the requests started at
        earlier batch boundaries.
    aging_classes : {"all", "predicted-long"}
        Whose waits form that sample; the paper does not say.
    aging_sample : {"history", "queue"}
        Which waits: those of the requests started at earlier batch boundaries (the paper's), or how long those who wait
        at this boundary have waited so far.
    aging_window : int, optional
        Only the last so many starts form the history; default: all.

    Raises
    ------
    InputError
        If a parameter lies outside its range.
    """

    aging_quantile: float = 0.8
    aging_classes: str = "all"
    aging_sample: str = "history"
    aging_window: int | None = None
    rule_class = AARule

    def __post_init__(self) -> None:
        _check_aging(self)


@named_parameters
@dataclass(frozen=True)
class QBA(Policy):
    """Quota-based aging: one aged predicted-long promotion for every k predicted-short admissions (section III-A6).

    A predicted-short request counts when its prefill completes. At the k-th, a promotion debt is earned; while it
    stands the counter rests, and it is cleared, with the counter, when the prefill of the promoted request completes.

    Parameters
    ----------
    quota : int
        k, at least 1.
    aging_quantile : float
        γ in (0, 1], as in `AA`.
    aging_classes, aging_sample, aging_window
        As in `AA`.
    promotion_clears : {"prefill-end", "start"}
        When the promoted request clears debt and counter. The paper says "admitted", but counts the others' admissions at
        the end of their prefill; at the start is the other reading.

    Raises
    ------
    InputError
        If a parameter lies outside its range.
    """

    quota: int = 5
    aging_quantile: float = 0.8
    aging_classes: str = "all"
    aging_sample: str = "history"
    aging_window: int | None = None
    promotion_clears: str = "prefill-end"
    rule_class = QBARule

    def __post_init__(self) -> None:
        object.__setattr__(self, "quota", whole_number("QBA", "quota", self.quota, at_least=1))
        _check_aging(self)
        one_of("QBA", "promotion_clears", self.promotion_clears, ("prefill-end", "start"))

    @property
    def rule(self) -> QBARule:
        return QBARule(self.aging_quantile, self.quota, self.promotion_clears == "start")


PAPER: tuple[type[Policy], ...] = (FCFS, PSF, AA, QBA)
"""The paper's four, which its study compares."""

BUILT_IN: tuple[type[Policy], ...] = (*PAPER,)
"""All policies, for the command line and the tests of invariants."""


OWN: dict[str, type[Policy]] = {}
"""Policies defined with `qba.policy` outside the package, by name."""


def policy_by_name(name: str, **parameters: float) -> Policy:
    """Make a policy from its name and parameters, as the command line and notebooks give them.

    Raises
    ------
    InputError
        If there is no such policy, or it has no such parameter.
    """
    return policy_class(name)(**parameters)


def policy_class(name: str) -> type[Policy]:
    """The class of a policy by its name. Raises InputError, listing those there are."""
    known = {cls.__name__: cls for cls in (*BUILT_IN, *OWN.values())}
    if name not in known:
        from qba.rivals import RIVALS  # only here: they are written with what stands above this module

        known |= {cls.__name__: cls for cls in RIVALS if cls.__name__ not in known}
    if name not in known:
        import difflib  # only a mistake needs it

        near = {other.lower(): other for other in known}
        match = difflib.get_close_matches(name.lower(), near, n=1)
        hint = f" (did you mean {near[match[0]]}?)" if match else ""
        raise InputError(f"unknown policy {name!r}{hint}: there are {', '.join(known)}; qba.policy makes a class one")
    return known[name]


def register(cls: type[Policy]) -> type[Policy]:
    """Let a policy be found by its name. One of the same name is replaced, unless it is built in.

    The package's own are found without it, and give way to a user's of the same name.
    """
    if cls.__name__ in {built_in.__name__ for built_in in BUILT_IN}:
        raise InputError(f"policy {cls.__name__}: there is a built-in policy of that name; choose another")
    if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
        OWN[cls.__name__] = cls
    return cls


def _check_aging(policy: AA | QBA) -> None:
    value = number(policy.name, "aging_quantile", policy.aging_quantile, above=0, at_most=1)
    object.__setattr__(policy, "aging_quantile", value)
    one_of(policy.name, "aging_classes", policy.aging_classes, ("all", "predicted-long"))
    one_of(policy.name, "aging_sample", policy.aging_sample, ("history", "queue"))
    if policy.aging_window is not None:
        window = whole_number(policy.name, "aging_window", policy.aging_window, at_least=1)
        object.__setattr__(policy, "aging_window", window)
        if policy.aging_sample == "queue":
            raise InputError(
                f"{policy.name}: aging_window = {window} counts starts, but aging_sample = 'queue' looks at none"
            )
