"""A recorded run as plain arrays, with what the invariants need to know of each batch boundary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

import qba


@dataclass
class Record:
    """A run and its batches as plain arrays, with what can be told from them about each boundary."""

    requests: qba.Requests
    policy: object
    config: qba.EngineConfig

    def __post_init__(self):
        run, batches = qba.simulate(self.requests, self.policy, self.config, record=True)
        for dataset in (run, batches):
            for name in dataset.data_vars:
                setattr(self, name, dataset[name].values)
        self.total_evictions = run["evictions"].item()  # the column of the batches has the same name
        self.end_s = self.time_s + self.duration_s
        self.batch_tokens = self.decode_tokens + self.prefill_tokens

    @cached_property
    def start_batch(self):
        """Batch in which each request starts; fails where a start is not a boundary."""
        batch = np.searchsorted(self.time_s, self.start_s)
        np.testing.assert_array_equal(self.time_s[np.minimum(batch, len(self.time_s) - 1)], self.start_s)
        return batch

    @cached_property
    def prefill_batch(self):
        """Batch at whose end each request's prefill is complete; fails where that is not the end of a batch."""
        return self._ending(self.prefill_end_s)

    @cached_property
    def finish_batch(self):
        return self._ending(self.finish_s)

    def _ending(self, moments):
        batch = np.searchsorted(self.end_s, moments)
        np.testing.assert_array_equal(self.end_s[np.minimum(batch, len(self.end_s) - 1)], moments)
        return batch

    @cached_property
    def started(self):
        """Whether request (row) has started and not yet gone in batch (column), after the batch's admissions."""
        batch = np.arange(self.batches)
        return (self.start_batch[:, None] <= batch) & (batch <= self.finish_batch[:, None])

    @cached_property
    def freed(self):
        """KV tokens freed by the requests that leave at the end of each batch."""
        total = self.prompt_tokens + self.response_tokens
        return np.bincount(self.finish_batch, weights=total, minlength=self.batches).astype(int)

    @cached_property
    def lost(self):
        """KV tokens evicted at the end of each batch: what is missing at the beginning of the next."""
        next_live = np.append(self.live_kv_tokens[1:] - self.batch_tokens[1:], 0)
        return self.live_kv_tokens - self.freed - next_live

    @cached_property
    def evicted(self):
        """Number of evicted requests that still wait in each batch, after its admissions."""
        return np.cumsum(self.evictions) - self.evictions - np.cumsum(self.readmissions)

    @cached_property
    def in_flight(self):
        """Number of requests in flight in each batch, after its admissions."""
        return self.started.sum(axis=0) - self.evicted

    @cached_property
    def known_to_decode(self):
        """Batches in which all who once completed their prefill and have not left are known to decode.

        No evicted request waits at their boundary, and the last one that came back is prefilled again: a batch with
        budget left over, or with somebody's first start (which is after it), has left no prefill before it unfinished.
        """
        known = self.evicted + self.readmissions == 0
        coming_back = False
        for i in range(self.batches):
            known[i] &= not coming_back
            coming_back |= self.readmissions[i] > 0
            coming_back &= self.batch_tokens[i] == self.config.token_budget and self.admissions[i] == 0
        return known

    @cached_property
    def prompt_kv(self):
        """Live tokens and prompt tokens still to come of admitted requests, in each batch after its admissions.

        No prompt tokens are to come in a batch with budget left over. In the others those of the evicted requests that
        wait are counted too, and what they had generated, as neither is recorded: an upper bound, exact without them.
        """
        admitted = np.array([self.prompt_tokens[self.start_batch <= i].sum() for i in range(self.batches)])
        with_evicted = admitted + np.cumsum(self.decode_tokens) - (np.cumsum(self.freed) - self.freed)
        return np.where(self.batch_tokens < self.config.token_budget, self.live_kv_tokens, with_evicted)

    @cached_property
    def whole_kv(self):
        """Prompt and response tokens of the requests that have not left, in each batch after its admissions."""
        return ((self.prompt_tokens + self.response_tokens)[:, None] * self.started).sum(axis=0)

    @cached_property
    def admitted_kv(self):
        """What the KV rule looked at when the last request of each batch was admitted, that request included."""
        rule = self.config.kv_projection
        return {"chunk": self.live_kv_tokens, "reserve-all": self.whole_kv}.get(rule, self.prompt_kv)

    def kv_with(self, i, x, without=False):
        """What the KV rule looks at where request x asks for admission in batch i, after all others but some.

        Those left out are the ones started in batch i that `without` selects, a mask of requests or True for all.
        In a batch with admissions or with budget left over no earlier prefill is unfinished (see
        `at_most_one_prefill_is_unfinished`): before its admissions all admitted prompt tokens are live. Where evicted
        requests wait this is an upper bound, as `prompt_kv`.
        """
        left_out = without & (self.start_batch == i)
        if self.config.kv_projection == "reserve-all":
            total = self.prompt_tokens + self.response_tokens
            return self.whole_kv[i] - total[left_out].sum() + total[x]
        whole = self.prompt_kv[i] - self.prompt_tokens[left_out].sum() + self.prompt_tokens[x]
        if self.config.kv_projection == "chunk":
            full = self.live_kv_tokens[i] + self.config.token_budget - self.batch_tokens[i]  # with all budget used up
            return min(whole, full)
        return whole

    def waiting_after(self, i):
        """Indices of the requests that wait after the admissions of batch i."""
        return np.flatnonzero((self.arrival_s <= self.time_s[i]) & (self.start_batch > i))
