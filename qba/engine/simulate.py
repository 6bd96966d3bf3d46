"""From validated input through the compiled loop to a labelled dataset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr
from numba.core.errors import NumbaError

from qba.config import EngineConfig
from qba.engine import loop
from qba.engine.aging import HISTORY, QUEUE, WINDOW, Aging
from qba.engine.memory import (
    BATCH_LOG, IDLE, WRONG_CHOICE, UNSTEADY, WRONG_KEY, WRONG_QUEUE, Given, allocate, engine_record,
)  # fmt: skip
from qba.errors import InputError
from qba.policies import Policy
from qba.requests import Requests
from qba.validate import instance


class Run(NamedTuple):
    """One run as plain arrays of shape (n,), in seconds, and totals, a record of `memory.LEDGER`: what sweeps work on."""

    start_s: np.ndarray
    prefill_end_s: np.ndarray
    first_token_s: np.ndarray
    finish_s: np.ndarray
    promoted: np.ndarray
    totals: np.void


def serve(requests: Requests, policy: Policy, config: EngineConfig, log: np.ndarray | None = None) -> Run:
    """Run the compiled loop. ``log``: structured array of `memory.BATCH_LOG`, one entry a batch, or None."""
    check(requests, policy, config)
    aging = _aging(policy)
    aged = not np.isnan(aging.level)
    queues, own, known = policy.room(requests)
    given = Given(requests.arrival_s, requests.prompt_tokens, requests.response_tokens, requests.predicted_long, *known)
    memory = allocate(given, config, log, aged and aging.sample == HISTORY, aging.window if aged else 0, queues, own)
    try:
        loop.run(policy.rule, aging, engine_record(config), memory)
    except Exception as error:  # compiled methods of a user's policy raise what Python would
        if not isinstance(error, NumbaError) and not hasattr(policy, "code"):
            raise
        from qba.definition import explain  # needed here alone, and it imports this module's neighbours

        raise InputError(explain(policy, requests, error)) from error
    problem = int(memory.ledger[0]["problem"])
    if problem:
        raise InputError(f"policy {policy.name}: {PROBLEMS[problem]}")
    return Run(*memory.made, memory.ledger[0])


PROBLEMS = {
    WRONG_CHOICE: "its pick or choose named a class or queue in which no request waits",
    IDLE: "its choose picked nobody though the engine was empty and requests waited",
    WRONG_KEY: "its key returned NaN, so the request has no place in the order",
    WRONG_QUEUE: "its queue returned a number that is none of its queues",
    UNSTEADY: "its pick or choose changes state, which it may only read: the same run came out another way",
}


def _aging(policy: Policy) -> Aging:
    sample = QUEUE if policy.aging_sample == "queue" else HISTORY if policy.aging_window is None else WINDOW
    longs_only = policy.aging_classes == "predicted-long"
    return Aging(policy.rule.aging_quantile, sample, longs_only, policy.aging_window or 0)


def check(requests: Requests, policy: Policy, config: EngineConfig) -> None:
    """Raise `InputError` for anything the loop could not serve."""
    instance("simulate", "requests", requests, Requests)
    instance("simulate", "policy", policy, Policy, " instance, such as qba.QBA()")
    instance("simulate", "config", config, EngineConfig)
    limits = [(config.kv_safe_tokens, "kv_safety × kv_capacity", config.kv_projection == "reserve-all")]
    if config.on_overflow == "preempt":
        limits.append((config.kv_capacity, "kv_capacity", True))
    for limit, words, whole in limits:
        needed = requests.prompt_tokens + requests.response_tokens if whole else requests.prompt_tokens
        largest = int(needed.argmax())
        if needed[largest] > limit:
            raise InputError(
                f"simulate: request {largest} has {'prompt_tokens + response_tokens' if whole else 'prompt_tokens'} = "
                f"{needed[largest]}, but the engine takes at most {limit:g} ({words}), so it could never run: leave "
                "such requests out (--drop-oversize, qba.traces.drop_oversize), scale the lengths (--length-scale, "
                "qba.traces.scale_lengths) or enlarge kv_capacity (--kv)"
            )


def simulate(
    requests: Requests, policy: Policy, config: EngineConfig = EngineConfig(), record: bool = False
) -> xr.Dataset | tuple[xr.Dataset, xr.Dataset]:
    """Serve the requests on one engine under one policy (paper, sections II-A and III).

    Deterministic: the same input gives the same output to the last bit.

    Parameters
    ----------
    requests : Requests
        What arrives.
    policy : Policy
        `FCFS`, `PSF`, `AA` or `QBA`.
    config : EngineConfig
        The engine. The default is the paper's.
    record : bool
        Also return what happened at each batch.

    Returns
    -------
    run : xarray.Dataset
        Dimension ``request``: arrival, start of the first chunk, end of prefill, end of the batch with the first
        decoded token, finish and waiting time (start − arrival) in seconds, lengths in tokens, labels, promoted flag.
        Scalars: batches, tokens, busy time, makespan, throughput, batch utilization, peak live KV, KV overflows
        (batches whose live KV exceeds the capacity), blocked admissions (refused candidates, once a batch boundary),
        evictions (0 unless the engine preempts), promoted and aged fraction of the predicted-long requests (NaN where there is none, and for policies without
        aging).
    batches : xarray.Dataset
        Only with ``record=True``. Dimension ``batch``; see its variables' ``long_name``.

    Raises
    ------
    InputError
        If an argument is of the wrong kind, or a request is longer than the KV limits allow.
    """
    result = serve(requests, policy, config)
    run = _run_dataset(requests, policy, config, result)
    if not record:
        return run
    log = np.zeros(result.totals["batches"], BATCH_LOG)
    if serve(requests, policy, config, log).totals["batches"] != len(log):
        raise InputError(f"policy {policy.name}: {PROBLEMS[UNSTEADY]}")
    return run, _batch_dataset(log)


SCALARS = {
    "batches": ("1", "batches served"),
    "tokens": ("tokens", "prompt and response tokens served, those served again after an eviction included"),
    "busy_s": ("s", "time spent in batches"),
    "makespan_s": ("s", "last finish minus first arrival"),
    "throughput_tokens_per_s": ("tokens/s", "tokens over makespan"),
    "batch_utilization": ("1", "mean share of the token budget that a batch uses"),
    "peak_kv_tokens": ("tokens", "largest live KV"),
    "kv_overflows": ("1", "batches whose live KV exceeds the capacity"),
    "blocked_admissions": ("1", "candidates refused for want of KV, once a batch boundary"),
    "evictions": ("1", "requests evicted from the KV cache to be prefilled again"),
    "promoted_fraction": ("1", "promoted share of the predicted-long requests"),
    "aged_fraction": ("1", "share of the predicted-long requests whose wait exceeded the aging threshold at start"),
}
"""Units and long name of a run's scalars."""


def run_scalars(requests: Requests, policy: Policy, config: EngineConfig, result: Run) -> dict[str, float]:
    """The scalars of a run, in the order of `SCALARS`."""
    totals = result.totals
    makespan = float(result.finish_s.max() - requests.arrival_s[0])
    predicted_long = int(np.count_nonzero(requests.predicted_long))
    of_long = predicted_long if predicted_long and not np.isnan(policy.rule.aging_quantile) else np.nan
    return {
        "batches": int(totals["batches"]),
        "tokens": int(totals["tokens"]),
        "busy_s": float(totals["busy"]),
        "makespan_s": makespan,
        # Batches can be too short to move a late clock.
        "throughput_tokens_per_s": float(totals["tokens"] / makespan) if makespan else np.inf,
        "batch_utilization": float(totals["tokens"] / totals["batches"] / config.token_budget),
        "peak_kv_tokens": int(totals["peak_kv_tokens"]),
        "kv_overflows": int(totals["kv_overflows"]),
        "blocked_admissions": int(totals["blocked_admissions"]),
        "evictions": int(totals["evictions"]),
        "promoted_fraction": float(totals["promoted"] / of_long),
        "aged_fraction": float(totals["aged"] / of_long),
    }


def _run_dataset(requests: Requests, policy: Policy, config: EngineConfig, result: Run) -> xr.Dataset:
    columns = {
        "arrival_s": (requests.arrival_s, "s", "arrival"),
        "prompt_tokens": (requests.prompt_tokens, "tokens", "prompt length"),
        "response_tokens": (requests.response_tokens, "tokens", "response length"),
        "start_s": (result.start_s, "s", "start of the first prefill chunk"),
        "prefill_end_s": (result.prefill_end_s, "s", "end of prefill"),
        "first_token_s": (result.first_token_s, "s", "end of the batch with the first response token"),
        "finish_s": (result.finish_s, "s", "end of the batch with the last response token"),
        "wait_s": (result.start_s - requests.arrival_s, "s", "waiting time (start minus arrival)"),
        "true_long": (requests.true_long, "1", "response is long"),
        "predicted_long": (requests.predicted_long, "1", "response is predicted long"),
        "promoted": (result.promoted, "1", "admitted by promotion"),
    }
    variables = {
        name: ("request", values, {"units": units, "long_name": text})
        for name, (values, units, text) in columns.items()
    }
    for name, value in run_scalars(requests, policy, config, result).items():
        units, text = SCALARS[name]
        variables[name] = ((), value, {"units": units, "long_name": text})
    return xr.Dataset(variables, attrs={"policy": repr(policy), "config": repr(config)})


BATCH_COLUMNS = {
    "time_s": ("s", "batch boundary at which the batch starts"),
    "duration_s": ("s", "batch time"),
    "decode_tokens": ("tokens", "decode tokens in the batch"),
    "prefill_tokens": ("tokens", "prefill tokens in the batch"),
    "live_kv_tokens": ("tokens", "live KV with this batch's tokens, before completions free any"),
    "waiting_short": ("1", "predicted-short requests waiting before admissions"),
    "waiting_long": ("1", "predicted-long requests waiting before admissions"),
    "threshold_s": ("s", "aging threshold (infinite without history, NaN without aging)"),
    "counter": ("1", "short admissions counted after the batch"),
    "debt": ("1", "promotion debt after the batch"),
    "admissions": ("1", "requests started in the batch"),
    "promotions": ("1", "requests started by promotion in the batch"),
    "evictions": ("1", "requests evicted from the KV cache after the batch"),
    "readmissions": ("1", "evicted requests let in again in the batch"),
}


def _batch_dataset(log: np.ndarray) -> xr.Dataset:
    return xr.Dataset(
        {
            name: ("batch", np.ascontiguousarray(log[name]), {"units": units, "long_name": text})
            for name, (units, text) in BATCH_COLUMNS.items()
        }
    )
