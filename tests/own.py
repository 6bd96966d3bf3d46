"""Built-in policies written once more with `qba.policy`, to tell what a policy of one's own costs."""

import qba
from qba.policies import LONG, PROMOTED, SHORT


@qba.policy
class FCFSByKey:
    def key(self, request):
        return 0


@qba.policy(knows="class")
class PSFByKey:
    def key(self, request):
        return request.predicted_long


@qba.policy(knows="class", queues=2)
class PSFByQueue:
    def queue(self, request):
        return request.predicted_long

    def choose(self, state, first, line):
        return 0 if first[0] >= 0 else 1


@qba.policy(knows="class")
class QBAByPick:
    aging_quantile: float = 0.8
    quota: int = 5

    def pick(self, state, short, long, aged):
        if aged and state[1] and not state[2]:
            return PROMOTED
        return SHORT if short >= 0 else LONG

    def started(self, state, choice):
        if choice == PROMOTED:
            state[2] = 1

    def prefilled(self, state, long, promoted):
        if promoted:
            state[0] = state[1] = state[2] = 0
        elif not long and not state[1]:
            state[0] += 1
            state[1] = state[0] == self.quota


PAIRS = (
    (FCFSByKey(), qba.FCFS()), (PSFByKey(), qba.PSF()), (PSFByQueue(), qba.PSF()), (QBAByPick(), qba.QBA()),
)  # fmt: skip
"""Each with the built-in one that it must equal."""
