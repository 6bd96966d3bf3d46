"""The serving engine once more, in slow and obvious Python: the twin that the compiled loop must equal.

It was written from the description of the model and not from the loop, so that a misreading in one of them shows
up as a difference.  Nothing here is clever: a batch boundary is a list of small functions, one a step, and everything
that waits or runs sits in an ordinary list.  Paper, sections III-A and IV-A.

Read from the caller: the columns of `requests`, the name and the parameters of `policy`, the fields of `config`.  Sums
are taken in the order of the formulas, so that agreement to the last bit can be asked for.
"""

import math
from collections import namedtuple
from dataclasses import dataclass, field

AGING = ("AA", "QBA")
POLICY_NAMES = ("FCFS", "PSF", *AGING)
NOBODY, OLDEST = -1, -3  # what a policy's choice of queue may also be
Line = namedtuple("Line", "now batches arrived oldest oldest_arrival oldest_batches")


@dataclass(eq=False)  # two requests are the same only if they are one object
class Request:
    index: int
    arrival: float
    prompt: int
    response: int
    true_long: bool
    long: bool  # the predicted class
    predicted: int  # response tokens
    client: int
    prefilled: int = 0  # since its last admission
    generated: int = 0  # in all; what an eviction loses of it comes back by prefill, not by decoding
    key: float = 0.0  # of a policy that orders by keys
    queue: int = 0
    batches_before: int = 0
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
    arrivals: int
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
    state: list = field(default_factory=list)  # of a policy that orders by keys
    queues: int = 0  # of such a policy
    batches: list = field(default_factory=list)

    def live_kv(self):
        return sum(r.kv() for r in self.in_flight)

    def is_aged(self, request):
        return request.long and self.now - request.arrival > self.threshold

    def counts_for_aging(self, request):
        return request.long or self.policy.aging_classes == "all"


def simulate(requests, policy, config):
    """Serve `requests` under `policy`; returns (run, batches): a dict of lists and scalars, and one dict a batch."""
    if policy.name not in POLICY_NAMES and not orders_by_keys(policy):
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
    engine = Engine(policy, config, coming=sorted(everyone, key=lambda r: (r.arrival, r.index)), arrivals=len(everyone))
    if orders_by_keys(policy):
        engine.queues = number_of_queues(policy, everyone)
        engine.state = [0.0] * (engine.queues + policy.memory + (len(everyone) if policy.notes else 0))
    while engine.coming or engine.waiting or engine.evicted or engine.in_flight:
        run_batch(engine)
    return summary(engine, everyone), engine.batches


def read_requests(requests):
    columns = (requests.arrival_s, requests.prompt_tokens, requests.response_tokens)
    labels = (requests.true_long, requests.predicted_long)
    rows = zip(*columns, *labels, requests.predicted_tokens, requests.client, strict=True)
    return [
        Request(i, float(a), int(p), int(d), bool(y), bool(z), int(e), int(c))
        for i, (a, p, d, y, z, e, c) in enumerate(rows)
    ]


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
        r = engine.coming.pop(0)
        r.batches_before = len(engine.batches)
        r.key = float(ask(engine, "key", r, otherwise=0.0))
        r.queue = int(ask(engine, "queue", r, otherwise=0))
        if orders_by_keys(engine.policy):
            tell(engine, "arrived", r, first_of_each(queues_of(engine, engine.waiting)))
        engine.waiting.append(r)


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
        if block > 0:
            tell(engine, "decoded", r, block)
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
        if candidate in refused and orders_by_keys(engine.policy):
            break
        if projected_kv(engine, candidate, left) > safe_tokens(engine.config) and not comes_back_alone(
            engine, candidate
        ):
            if candidate not in refused:
                refused.append(candidate)
            if by_aging and (skip or any(not r.long for r in engine.waiting)):
                promoting = False  # passed over: the rest of this boundary goes on in ordinary order
            elif not skip or not first_of_its_queue(engine, candidate, refused[:-1]):
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
    tell(engine, "started", request)


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
    if orders_by_keys(engine.policy):
        return next_by_keys(engine, waiting), False
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
    finished = [r for r in engine.decoding if r.finish is not None]
    engine.decoding = [r for r in engine.decoding if r.finish is None]
    engine.in_flight = [r for r in engine.in_flight if r.finish is None]
    for r in [r for r in engine.prefilling if r.prefilled == r.to_prefill()]:
        engine.prefilling.remove(r)
        engine.decoding.append(r)
        if r.prefill_end is None:  # later ones, after an eviction, count for nothing
            r.prefill_end = engine.now
            if engine.policy.name == "QBA":
                credit_prefill(engine, r)
            tell(engine, "prefilled", r)
    for r in finished:
        tell(engine, "finished", r)


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


def orders_by_keys(policy):
    """Whether the policy was defined by keys, queues and a choice of queue (see qba.policy)."""
    return hasattr(policy.rule_class, "methods")


def number_of_queues(policy, everyone):
    return 1 + max(r.client for r in everyone) if policy.queues == "clients" else policy.queues


def seen(policy, request):
    """A request as the policy may see it."""
    everything = {
        "number": request.index,
        "arrival_s": request.arrival,
        "prompt_tokens": request.prompt,
        "predicted_long": request.long,
        "predicted_tokens": request.predicted,
        "client": request.client,
        "response_tokens": request.response,
        "true_long": request.true_long,
    }
    view = policy.rule_class.seen
    return view(*(everything[name] for name in view._fields))


def ask(engine, method, request, otherwise):
    if not orders_by_keys(engine.policy) or method not in engine.policy.rule_class.methods:
        return otherwise
    return engine.policy.rule_class.methods[method](engine.policy.rule, seen(engine.policy, request))


def tell(engine, method, request, *more):
    if orders_by_keys(engine.policy) and method in engine.policy.rule_class.methods:
        function = engine.policy.rule_class.methods[method]
        function(engine.policy.rule, engine.state, seen(engine.policy, request), request.queue, *more)


def in_order(requests):
    return sorted(requests, key=lambda r: (r.key, r.index))


def first_of_its_queue(engine, candidate, put_aside):
    if not orders_by_keys(engine.policy) or candidate in engine.evicted:
        return True
    return candidate is in_order(r for r in engine.waiting if r.queue == candidate.queue and r not in put_aside)[0]


def queues_of(engine, waiting):
    return [in_order(r for r in waiting if r.queue == q) for q in range(engine.queues)]


def first_of_each(queues):
    return [queue[0].index if queue else -1 for queue in queues]


def next_by_keys(engine, waiting):
    """The first of the queue that the policy chooses among ``waiting``, or the oldest of all who wait."""
    policy = engine.policy
    if "choose" not in policy.rule_class.methods:
        return in_order(waiting)[0]
    queues = queues_of(engine, waiting)
    first = first_of_each(queues)
    oldest = engine.waiting[0]
    arrived = engine.coming[0].index if engine.coming else engine.arrivals
    line = Line(engine.now, len(engine.batches), arrived, oldest.index, oldest.arrival, oldest.batches_before)
    choice = policy.rule_class.methods["choose"](policy.rule, engine.state, first, line)
    if choice == NOBODY:
        return None
    return oldest if choice == OLDEST else queues[choice][0]


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
