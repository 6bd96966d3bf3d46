"""Rivals that order by a predicted length: shortest first, with and without a guard against starvation."""

from __future__ import annotations

from qba.definition import policy
from qba.policies import OLDEST


@policy(knows="length")
class SSJF:
    """Speculative shortest job first: the smallest predicted response goes first.

    Source: Qiu et al., "Efficient Interactive LLM Serving with Proxy Model-based Sequence Length Prediction", 2024,
    arXiv 2404.08509 (its abstract was read, not the whole paper).
    Left out: the proxy model; its errors are those of `qba.predict_lengths`, its running time is none.
    """

    def key(self, request):
        return request.predicted_tokens


@policy(knows="length")
class SPRPT:
    """Shortest predicted remaining: the smallest prompt and predicted response together go first.

    Source: classical, shortest remaining processing time with predictions instead of sizes.
    Left out: preemption. Who waits here has not begun, so what remains of it is the whole; a request that runs is never
    paused for a shorter one, which is most of what the rule gains in a queue that preempts.
    """

    def key(self, request):
        return request.prompt_tokens + request.predicted_tokens


@policy(knows="length", limits={"weight": {"at_least": 0}})
class SJFAging:
    """Shortest job first with linear aging: the smallest predicted response less ``weight`` times the wait goes first.

    As everyone's wait grows alike, the order is that of predicted response + weight × arrival, which never changes.

    Parameters: ``weight``, tokens per second that a request has waited; 0 is `SSJF`, very much is first come, first
    served.
    Source: classical; the same form as `VLLMPriorityAging`.
    """

    weight: float = 10.0

    def key(self, request):
        return request.predicted_tokens + self.weight * request.arrival_s


@policy(knows="length", limits={"starvation": {"at_least": 1}})
class LTR:
    """Learning to rank: the best rank, the smallest predicted response, goes first, but the starved before all.

    A request is starved when it has been left out of ``starvation`` batches in a row.

    Parameters: ``starvation``, batches.
    Source: Fu, Zhu, Su, Qiao, Stoica, Zhang, "Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024, arXiv
    2408.15792. The guard was read in its code (hao-ai-lab/vllm-ltr, vllm/core/scheduler.py at 8886f1e; 200 and 10 in
    its benchmarks' scripts): each step a request that does not run adds 1 to its idle count; at 200 its priority
    becomes -1, ahead of all others, and it stays so until it has run for the period, 10 steps. Requests are sorted by
    priority, then by score.
    Left out: the period. It protects a promoted request from being paused again; as nobody is paused here, a promoted
    request runs to its end in any case. Nor do running requests starve, so only those that wait are counted. Of several
    starved requests the oldest goes first here, in the code the best ranked. The scores are predicted lengths: only
    their order counts, so rank noise (`qba.predict_lengths`) is what spoils it.
    """

    starvation: int = 200

    def key(self, request):
        return request.predicted_tokens

    def choose(self, state, first, line):
        return OLDEST if line.batches - line.oldest_batches >= self.starvation else 0
