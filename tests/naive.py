"""The serving engine once more, in slow and obvious Python: the twin that the compiled loop must equal.

It was written from the description of the model and not from the loop, so that a misreading in one of them shows
up as a difference.  Nothing here is clever: a batch boundary is a list of small functions, one a step, and everything
that waits or runs sits in an ordinary list.  Paper, sections III-A and IV-A.

Read from the caller: the columns of `requests`, the name and the parameters of `policy`, the fields of `config`.  Sums
are taken in the order of the formulas, so that agreement to the last bit can be asked for.
"""

import math
from dataclasses import dataclass, field

AGING = ("AA", "QBA")
POLICY_NAMES = ("FCFS", "PSF", *AGING)


@dataclass(eq=False)  # two requests are the same only if they are one object
class Request:
    index: int
    arrival: float
    prompt: int
    response: int
    true_long: bool
    long: bool  # the predicted class, the only one that a policy sees
    prefilled: int = 0  # since its last admission
    generated: int = 0  # in all; what an eviction loses of it comes back by prefill, not by decoding
    recomputed: int = 0  # of the generated tokens, those that its last eviction lost
    start: float | None = None
    prefill_end: float | None = None
    first_token: float | None = None
    finish: float | None = None
    promoted: bool = False
    aged_at_start: bool = False

    def wait(self):
        return self.start - self.arrival

    def to_prefill(self):
        return self.prompt + self.recomputed

    def kv(self):
        return self.prefilled + self.generated - self.recomputed


@dataclass
class Engine:
    policy: object
    config: object
    coming: list
    now: float = -math.inf
    waiting: list = field(default_factory=list)  # for their first start, in order of arrival
    evicted: list = field(default_factory=list)  # and waiting to come back, in order of eviction: the last is first
    in_flight: list = field(default_factory=list)  # in order of admission: those in the next two lists
    prefilling: list = field(default_factory=list)  # in order of admission
    decoding: list = field(default_factory=list)  # in order of prefill completion
    waits: list = field(default_factory=list)  # of the requests that θ looks at, started at earlier boundaries
    threshold: float = math.inf
    counter: int = 0  # QBA: predicted-short prefills completed in this cycle
    debt: bool = False  # QBA: a promotion has been earned and not yet paid
    busy: float = 0.0
    blocked: int = 0
    batches: list = field(default_factory=list)

    def live_kv(self):
        return sum(r.kv() for r in self.in_flight)

    def is_aged(self, request):
        return request.long and self.now - request.arrival > self.threshold

    def counts_for_aging(self, request):
        return request.long or self.policy.aging_classes == "all"


def simulate(requests, policy, config):
    """Serve `requests` under `policy`; returns (run, batches): a dict of lists and scalars, and one dict a batch."""
    if policy.name not in POLICY_NAMES:
        raise ValueError(f"the twin knows no policy {policy.name!r}")
    everyone = read_requests(requests)
    for r in everyone:
        needs = r.prompt + r.response if config.kv_projection == "reserve-all" else r.prompt
        if needs > safe_tokens(config):
            raise ValueError(f"request {r.index} needs {needs} tokens, the limit is {safe_tokens(config)}")
        if config.on_overflow == "preempt" and r.prompt + r.response > config.kv_capacity:
            raise ValueError(
                f"request {r.index} grows to {r.prompt + r.response} tokens, KV holds {config.kv_capacity}"
            )
    engine = Engine(policy, config, coming=sorted(everyone, key=lambda r: (r.arrival, r.index)))
    while engine.coming or engine.waiting or engine.evicted or engine.in_flight:
        run_batch(engine)
    return summary(engine, everyone), engine.batches


def read_requests(requests):
    columns = (requests.arrival_s, requests.prompt_tokens, requests.response_tokens)
    labels = (requests.true_long, requests.predicted_long)
    rows = zip(*columns, *labels, strict=True)
    return [Request(i, float(a), int(p), int(d), bool(y), bool(z)) for i, (a, p, d, y, z) in enumerate(rows)]


def safe_tokens(config):
    return config.kv_safety * config.kv_capacity


def run_batch(engine):
    """One batch boundary and the batch that follows it."""
    take_arrivals(engine)
    set_threshold(engine)
    waiting_long = sum(r.long for r in engine.waiting)
    row = {
        "time_s": engine.now,
        "waiting_short": len(engine.waiting) - waiting_long,
        "waiting_long": waiting_long,
        "threshold_s": engine.threshold if engine.policy.name in AGING else math.nan,
    }
    decode_tokens = decode(engine, engine.config.token_budget)
    continued = continue_prefills(engine, engine.config.token_budget - decode_tokens)
    started, readmitted, first_chunks = admit(engine, engine.config.token_budget - decode_tokens - continued)
    live = engine.live_kv()
    row["duration_s"] = pass_time(engine, decode_tokens + continued + first_chunks)
    complete(engine)
    evictions = relieve_kv(engine)
    engine.waits += [r.wait() for r in started if engine.counts_for_aging(r)]
    row |= {
        "decode_tokens": decode_tokens,
        "prefill_tokens": continued + first_chunks,
        "live_kv_tokens": live,
        "counter": engine.counter,
        "debt": engine.debt,
        "admissions": len(started),
        "promotions": sum(r.promoted for r in started),
        "readmissions": len(readmitted),
        "evictions": evictions,
    }
    engine.batches.append(row)


def take_arrivals(engine):
    join_queue(engine)
    if not (engine.waiting or engine.evicted or engine.in_flight):
        engine.now = engine.coming[0].arrival
        join_queue(engine)


def join_queue(engine):
    while engine.coming and engine.coming[0].arrival <= engine.now:
        engine.waiting.append(engine.coming.pop(0))


def set_threshold(engine):
    policy = engine.policy
    if policy.name not in AGING:
        return
    if policy.aging_sample == "queue":
        sample = [engine.now - r.arrival for r in engine.waiting if engine.counts_for_aging(r)]
    elif policy.aging_window is None:
        sample = engine.waits
    else:
        sample = engine.waits[-policy.aging_window :]
    engine.threshold = quantile(sample, policy.aging_quantile) if sample else math.inf


def quantile(sample, gamma):
    """Empirical quantile, linear between the two order statistics around gamma * (n - 1)."""
    h = sorted(sample)
    x = gamma * (len(h) - 1)
    j = math.floor(x)
    if j + 1 == len(h):
        return h[-1]
    return h[j] + (x - j) * (h[j + 1] - h[j])


def decode(engine, budget):
    left = budget
    for r in engine.decoding:
        block = min(engine.config.decode_block, r.response - r.generated)
        if block > left and not engine.config.decode_partial:
            break  # nor does anyone after it decode in this batch
        block = min(block, left)
        r.generated += block
        left -= block
    return budget - left


def continue_prefills(engine, budget):
    left = budget
    for r in engine.prefilling:
        left -= prefill_chunk(r, left)
    return budget - left


def prefill_chunk(request, left):
    chunk = min(request.to_prefill() - request.prefilled, left)
    request.prefilled += chunk
    return chunk


def admit(engine, budget):
    """Let requests in while budget is left: returns those started, those let in again, the tokens of their chunks."""
    left = budget
    started, readmitted, refused = [], [], []
    skip = engine.config.on_blocked == "skip"
    promoting = True
    while left > 0:
        candidate, by_aging = next_candidate(engine, refused if skip else [], promoting)
        if candidate is None:
            break
        if projected_kv(engine, candidate, left) > safe_tokens(engine.config) and not comes_back_alone(
            engine, candidate
        ):
            if candidate not in refused:
                refused.append(candidate)
            if by_aging and (skip or any(not r.long for r in engine.waiting)):
                promoting = False  # passed over: the rest of this boundary goes on in ordinary order
            elif not skip:
                break
            continue
        if candidate in engine.evicted:
            engine.evicted.remove(candidate)
            readmitted.append(candidate)
        else:
            start(engine, candidate, by_aging)
            started.append(candidate)
        engine.in_flight.append(candidate)
        engine.prefilling.append(candidate)
        left -= prefill_chunk(candidate, left)
    engine.blocked += len(refused)
    return started, readmitted, budget - left


def start(engine, request, by_aging):
    engine.waiting.remove(request)
    request.start = engine.now
    request.promoted = by_aging
    request.aged_at_start = engine.is_aged(request)
    if by_aging:
        clear_debt(engine, "start")


def comes_back_alone(engine, candidate):
    """Whether an evicted request finds nothing in flight: then it is let in, as it may by now exceed the safe limit."""
    return candidate in engine.evicted and not engine.in_flight


def projected_kv(engine, candidate, left):
    """KV tokens once the candidate is in: with which part of what is still to come, says the engine's option."""
    live = engine.live_kv()
    return {
        "reserve-prompt": live + sum(r.to_prefill() - r.prefilled for r in engine.prefilling) + candidate.to_prefill(),
        "prompt": live + candidate.to_prefill(),
        "chunk": live + min(candidate.to_prefill(), left),
        "reserve-all": sum(r.prompt + r.response for r in [*engine.in_flight, candidate]),
    }[engine.config.kv_projection]


def next_candidate(engine, put_aside, promoting):
    """The request to try next, None if all have been put aside, and whether it comes by aging."""
    for r in reversed(engine.evicted):
        if r not in put_aside:
            return r, False
    waiting = [r for r in engine.waiting if r not in put_aside]
    if not waiting:
        return None, False
    shorts = [r for r in waiting if not r.long]
    longs = [r for r in waiting if r.long]
    aged = [r for r in longs if engine.is_aged(r)]
    name = engine.policy.name
    if name == "FCFS":
        return waiting[0], False
    if name == "AA" and promoting and aged:
        return aged[0], True
    if name == "QBA" and promoting and engine.debt and longs:
        paying = any(r.promoted and r.prefill_end is None for r in engine.prefilling + engine.evicted)
        if not paying and engine.is_aged(longs[0]):
            return longs[0], True
    return (shorts + longs)[0], False


def pass_time(engine, tokens):
    c = engine.config
    duration = c.batch_overhead_s + c.token_time_s * max(0, tokens - c.knee_tokens)
    engine.now += duration
    engine.busy += duration
    return duration


def complete(engine):
    """What the end of the batch changes; a request whose prefill ends here decodes from the next batch on."""
    for r in engine.decoding:
        if r.generated > 0 and r.first_token is None:
            r.first_token = engine.now
        if r.generated == r.response:
            r.finish = engine.now
    engine.decoding = [r for r in engine.decoding if r.finish is None]
    engine.in_flight = [r for r in engine.in_flight if r.finish is None]
    for r in [r for r in engine.prefilling if r.prefilled == r.to_prefill()]:
        engine.prefilling.remove(r)
        engine.decoding.append(r)
        if r.prefill_end is None:  # later ones, after an eviction, count for nothing
            r.prefill_end = engine.now
            if engine.policy.name == "QBA":
                credit_prefill(engine, r)


def relieve_kv(engine):
    """Preempt whoever was admitted last while the cache is overfull; returns how many were evicted."""
    evictions = 0
    if engine.config.on_overflow == "count":
        return evictions
    while engine.live_kv() > engine.config.kv_capacity and len(engine.in_flight) > 1:
        r = engine.in_flight.pop()
        (engine.prefilling if r in engine.prefilling else engine.decoding).remove(r)
        r.prefilled, r.recomputed = 0, r.generated
        engine.evicted.append(r)
        evictions += 1
    return evictions


def credit_prefill(engine, request):
    """QBA's account: a predicted-short prefill earns towards the next promotion, a promoted one may pay."""
    if request.promoted:
        clear_debt(engine, "prefill-end")
    elif not request.long and not engine.debt:
        engine.counter += 1
        engine.debt = engine.counter == engine.policy.quota


def clear_debt(engine, moment):
    if engine.policy.name == "QBA" and engine.policy.promotion_clears == moment:
        engine.debt = False
        engine.counter = 0


def summary(engine, everyone):
    tokens = sum(b["decode_tokens"] + b["prefill_tokens"] for b in engine.batches)
    live = [b["live_kv_tokens"] for b in engine.batches]
    makespan = max(r.finish for r in everyone) - min(r.arrival for r in everyone)
    return {
        "arrival_s": [r.arrival for r in everyone],
        "prompt_tokens": [r.prompt for r in everyone],
        "response_tokens": [r.response for r in everyone],
        "start_s": [r.start for r in everyone],
        "prefill_end_s": [r.prefill_end for r in everyone],
        "first_token_s": [r.first_token for r in everyone],
        "finish_s": [r.finish for r in everyone],
        "wait_s": [r.wait() for r in everyone],
        "true_long": [r.true_long for r in everyone],
        "predicted_long": [r.long for r in everyone],
        "promoted": [r.promoted for r in everyone],
        "batches": len(engine.batches),
        "tokens": tokens,
        "busy_s": engine.busy,
        "makespan_s": makespan,
        "throughput_tokens_per_s": tokens / makespan,
        "batch_utilization": tokens / len(engine.batches) / engine.config.token_budget,
        "peak_kv_tokens": max(live),
        "kv_overflows": sum(kv > engine.config.kv_capacity for kv in live),
        "blocked_admissions": engine.blocked,
        "evictions": sum(b["evictions"] for b in engine.batches),
        "promoted_fraction": fraction(engine, everyone, [r.promoted for r in everyone]),
        "aged_fraction": fraction(engine, everyone, [r.aged_at_start for r in everyone]),
    }


def fraction(engine, everyone, flags):
    longs = sum(r.long for r in everyone)
    if engine.policy.name not in AGING or longs == 0:
        return math.nan
    return sum(flags) / longs
