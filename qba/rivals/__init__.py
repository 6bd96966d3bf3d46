"""Other schedulers from the literature and from practice, to be run beside QBA.

Each is written with `qba.policy`, as a user would, and found by its name (`qba.policies.policy_by_name`,
``--policies``). Its text says the rule, what it knows of a request, its parameters, where it comes from and how surely,
and what was left out. All of them order admissions only: the engine serves decodes and prefills under way first and
pauses nobody to make room for another, so what a source does to running requests has no counterpart here.
"""

from __future__ import annotations

from qba.rivals.boost import Boost, BoostByLength, Boosts, NudgeM, boosts
from qba.rivals.by_class import DRR, WRR, VLLMPriority, VLLMPriorityAging
from qba.rivals.by_length import LTR, SPRPT, SSJF, SJFAging
from qba.rivals.fair import VTC, SkipJoinMLFQ

RIVALS = (
    SSJF, SPRPT, SJFAging, LTR, SkipJoinMLFQ, VTC, Boost, BoostByLength, NudgeM, WRR, DRR, VLLMPriority,
    VLLMPriorityAging,
)  # fmt: skip
"""All of them."""

__all__ = ["RIVALS", "Boosts", "boosts", *(rival.__name__ for rival in RIVALS)]
