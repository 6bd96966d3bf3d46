"""The serving engine's parameters (paper, sections II-A and IV-A3)."""

from __future__ import annotations

from dataclasses import dataclass

from qba.errors import InputError
from qba.validate import named_parameters, number, one_of, whole_number

KV_PROJECTIONS = ("reserve-prompt", "prompt", "chunk", "reserve-all")
ON_BLOCKED = ("stop", "skip")
ON_OVERFLOW = ("count", "preempt")


@named_parameters
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One serving engine: its token budget, KV cache and batch-time law. The defaults are the paper's (section IV-A3).

    Parameters
    ----------
    token_budget : int
        B, tokens that one batch may hold.
    decode_block : int
        q, tokens that a decoding request is given in one batch.
    kv_capacity : int
        M_max, tokens that the KV cache holds. More live tokens than this is a KV overflow.
    kv_safety : float
        η in (0, 1]; a prompt is admitted only while the projected KV use is at most η M_max.
    batch_overhead_s : float
        c0, seconds that any batch takes.
    token_time_s : float
        a, seconds for each token beyond the knee.
    knee_tokens : float
        b0, tokens that fit into the overhead.
    kv_projection : {"reserve-prompt", "prompt", "chunk", "reserve-all"}
        What is compared with η M_max when a prompt of P tokens asks for admission: the live tokens and what is left to
        prefill of all admitted prompts, and P; the live tokens and P (the same here, since a batch that leaves a prompt
        unfinished admits nobody after it); the live tokens and the part of P that this batch would take; or prompt and
        response of all requests in flight and of this one.
    decode_partial : bool
        Whether the last decoding request that a batch has room for may be given a part of its block; otherwise it and
        those after it get nothing in that batch.
    on_blocked : {"stop", "skip"}
        What a candidate that the KV limit refuses does to the rest of the boundary: it ends the admissions, or is passed
        over for whoever is next in the policy's order. A refused promotion is passed over either way; nothing else is
        promoted at that boundary.
    on_overflow : {"count", "preempt"}
        What a KV overflow does: it is only counted; or requests leave the cache at the end of the batch, the one admitted
        last first, until the rest fits or one is left. An evicted request waits ahead of the policy's candidates, the
        last evicted first, and prefills its prompt and what it had generated again; its first times stay.

    The paper is silent on the last four.

    Raises
    ------
    InputError
        If a value is outside its range; the message names it.
    """

    token_budget: int = 128
    decode_block: int = 8
    kv_capacity: int = 8192
    kv_safety: float = 0.7
    batch_overhead_s: float = 0.003
    token_time_s: float = 2e-5
    knee_tokens: float = 64
    kv_projection: str = "reserve-prompt"
    decode_partial: bool = True
    on_blocked: str = "stop"
    on_overflow: str = "count"

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("token_budget", "decode_block", "kv_capacity"):
            object.__setattr__(self, name, whole_number(owner, name, getattr(self, name), at_least=1))
        ranges = {
            "kv_safety": {"above": 0, "at_most": 1},
            "batch_overhead_s": {"above": 0},
            "token_time_s": {"at_least": 0},
            "knee_tokens": {"at_least": 0},
        }
        for name, bounds in ranges.items():
            object.__setattr__(self, name, number(owner, name, getattr(self, name), **bounds))
        one_of(owner, "kv_projection", self.kv_projection, KV_PROJECTIONS)
        one_of(owner, "on_blocked", self.on_blocked, ON_BLOCKED)
        one_of(owner, "on_overflow", self.on_overflow, ON_OVERFLOW)
        one_of(owner, "decode_partial", self.decode_partial, (True, False))
        if not self.decode_partial and self.decode_block > self.token_budget:
            raise InputError(
                f"{owner}: decode_block = {self.decode_block} exceeds token_budget = {self.token_budget}, so without "
                "decode_partial nothing could ever decode"
            )

    @classmethod
    def from_profile(cls, profile, **fields) -> EngineConfig:
        """An engine with the batch-time law of a profile.

        profile: a preset's name (see `qba.PRESETS`), a `qba.Profile`, or the result of `qba.fit_profile`.
        fields: any other parameter; one of the law's given here as well is taken instead of the profile's.

        Raises InputError for an unknown preset, or a value outside its range.
        """
        from qba.profiles import as_profile  # here, because configurations know no other module

        return cls(**{**as_profile(profile).engine_fields, **fields})

    @property
    def kv_safe_tokens(self) -> float:
        """M_safe = η M_max, the projected KV use up to which prompts are admitted (tokens)."""
        return self.kv_safety * self.kv_capacity
