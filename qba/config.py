"""The serving engine's parameters (paper, sections II-A and IV-A3)."""

from __future__ import annotations

from dataclasses import dataclass

from qba.validate import named_parameters, number, whole_number


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
        M_max, tokens that the KV cache holds. More live tokens than this is a KV overflow; it is counted.
    kv_safety : float
        η in (0, 1]; a prompt is admitted only while the projected KV use is at most η M_max.
    batch_overhead_s : float
        c0, seconds that any batch takes.
    token_time_s : float
        a, seconds for each token beyond the knee.
    knee_tokens : float
        b0, tokens that fit into the overhead.

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

    @property
    def kv_safe_tokens(self) -> float:
        """M_safe = η M_max, the projected KV use up to which prompts are admitted (tokens)."""
        return self.kv_safety * self.kv_capacity
