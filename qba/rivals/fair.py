"""Rivals that know nothing of the response: fair shares of clients, and queues by the prompt's length."""

from __future__ import annotations

from qba.definition import policy
from qba.policies import OLDEST

LEVELS = 8


@policy(
    knows="client", queues="clients", memory=1,
    limits={"prompt_weight": {"at_least": 0}, "response_weight": {"at_least": 0}},
)  # fmt: skip
class VTC:
    """Virtual token counter: the client served least so far goes first, among its requests the oldest.

    Each client has a counter of service. An admission adds ``prompt_weight`` for each prompt token, a batch
    ``response_weight`` for each response token that it decodes. When a client comes of which nobody waits, its counter
    is lifted, if it is smaller, to the smallest one among the clients that do wait; or, where nobody waits at all, to
    that of the client which last left the queue: no credit is saved up while idle.

    Parameters: ``prompt_weight``, ``response_weight``, per token.
    Source: Sheng, Cao, Li, Zhu, Li, Zhuo, Gonzalez, Stoica, "Fairness in Serving Large Language Models", OSDI 2024,
    arXiv 2401.00588. Weights 1 and 2, when they are charged and the lift to those who wait are as read in its code
    (Ying1123/VTC-artifact, slora/server/router/vtc_req_queue.py at 14c19b7); the lift where nobody waits, which that
    code leaves out, is as a public review of the paper tells its Algorithm 2.
    Left out: weights of clients and other costs than the linear one. Of equal counters the older request goes first.
    Tokens lost by an eviction are charged once.
    """

    prompt_weight: float = 1.0
    response_weight: float = 2.0

    def queue(self, request):
        return request.client

    def choose(self, state, first, line):
        best = -1
        for q in range(len(first)):
            if first[q] >= 0:
                if best < 0 or state[q] < state[best] or (state[q] == state[best] and first[q] < first[best]):
                    best = q
        return best

    def arrived(self, state, request, queue, first):
        if first[queue] < 0:
            least = int(state[-1]) - 1  # who last left the queue, if anybody has
            for q in range(len(first)):
                if first[q] >= 0 and (least < 0 or first[least] < 0 or state[q] < state[least]):
                    least = q
            if least >= 0:
                state[queue] = max(state[queue], state[least])

    def started(self, state, request, queue):
        state[queue] += self.prompt_weight * request.prompt_tokens
        state[-1] = queue + 1

    def decoded(self, state, request, queue, tokens):
        state[queue] += self.response_weight * tokens


@policy(
    queues=LEVELS,
    limits={
        "base_s": {"above": 0}, "ratio": {"above": 1}, "starvation_s": {"at_least": 0},
        "prompt_token_s": {"at_least": 0},
    },
)  # fmt: skip
class SkipJoinMLFQ:
    """Skip-join multi-level feedback queue: a request joins the first level whose quantum covers its prefill.

    Level i = 0 … 7 has the quantum base × ratio^i; the last takes all others. The lowest level in which somebody waits
    is served, in order of arrival, but whoever has waited for ``starvation_s`` goes before all, the oldest first.

    Parameters: ``base_s``, quantum of level 0, seconds; ``ratio`` of one level's quantum to the one before;
    ``starvation_s``, seconds; ``prompt_token_s``, seconds that a prompt token is expected to take (default: in a full
    batch of the paper's engine).
    Source: Wu et al., "Fast Distributed Inference Serving for Large Language
    Models" (FastServe), 2023, arXiv 2305.05920. Its abstract was read: the prompt's length sets the queue, those above
    are skipped. Base 10 ms, ratio 2 and 3 s are the defaults of the copy in hao-ai-lab/vllm-ltr
    (vllm/core/mlfq_scheduler.py at 8886f1e), which does not skip queues; how the paper promotes the starved is as
    remembered, not checked.
    Left out: demotion of a running request whose quantum is used up, and so its being paused: most of the rule. What is
    left is an order of admission by the prompt's length. A starved request goes before all instead of to the end of
    level 0.
    """

    base_s: float = 0.01
    ratio: float = 2.0
    starvation_s: float = 3.0
    prompt_token_s: float = 3.34375e-5

    def queue(self, request):
        level, quantum = 0, self.base_s
        while level < LEVELS - 1 and quantum < request.prompt_tokens * self.prompt_token_s:
            level += 1
            quantum *= self.ratio
        return level

    def choose(self, state, first, line):
        if line.now - line.oldest_arrival >= self.starvation_s:
            return OLDEST
        level = 0
        while first[level] < 0:
            level += 1
        return level
