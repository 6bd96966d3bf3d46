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
    def in_flight(self):
        """Whether request (row) is let in and not yet gone in batch (column), after the batch's admissions."""
        batch = np.arange(self.batches)
        return (self.start_batch[:, None] <= batch) & (batch <= self.finish_batch[:, None])

    @cached_property
    def prompt_kv(self):
        """Live tokens and prompt tokens still to come of admitted requests, in each batch after its admissions."""
        admitted = np.array([self.prompt_tokens[self.start_batch <= i].sum() for i in range(self.batches)])
        gone = self.finish_batch[:, None] < np.arange(self.batches)
        freed = ((self.prompt_tokens + self.response_tokens)[:, None] * gone).sum(axis=0)
        return admitted + np.cumsum(self.decode_tokens) - freed

    @cached_property
    def whole_kv(self):
        """Prompt and response tokens of the requests in flight, in each batch after its admissions."""
        return ((self.prompt_tokens + self.response_tokens)[:, None] * self.in_flight).sum(axis=0)

    @cached_property
    def admitted_kv(self):
        """What the KV rule looked at when the last request of each batch was admitted, that request included."""
        rule = self.config.kv_projection
        return {"chunk": self.live_kv_tokens, "reserve-all": self.whole_kv}.get(rule, self.prompt_kv)

    def kv_with(self, i, x, before=False):
        """What the KV rule looks at where request x asks for admission after, or before, all others in batch i.

        In a batch with admissions or with budget left over no earlier prefill is unfinished (see
        `at_most_one_prefill_is_unfinished`): before its admissions all admitted prompt tokens are live.
        """
        came = before & (self.start_batch == i)
        if self.config.kv_projection == "reserve-all":
            total = self.prompt_tokens + self.response_tokens
            return self.whole_kv[i] - total[came].sum() + total[x]
        whole = self.prompt_kv[i] - self.prompt_tokens[came].sum() + self.prompt_tokens[x]
        if self.config.kv_projection == "chunk":
            full = self.live_kv_tokens[i] + self.config.token_budget - self.batch_tokens[i]  # with all budget used up
            return min(whole, full)
        return whole

    def waiting_after(self, i):
        """Indices of the requests that wait after the admissions of batch i."""
        return np.flatnonzero((self.arrival_s <= self.time_s[i]) & (self.start_batch > i))
