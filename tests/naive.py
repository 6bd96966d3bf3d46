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
    prefilled: int = 0
    generated: int = 0
    start: float | None = None
    prefill_end: float | None = None
    first_token: float | None = None
    finish: float | None = None
    promoted: bool = False
    aged_at_start: bool = False

    def wait(self):
        return self.start - self.arrival


@dataclass
class Engine:
    policy: object
    config: object
    coming: list
    now: float = -math.inf
    waiting: list = field(default_factory=list)  # in order of arrival
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
        return sum(r.prefilled + r.generated for r in self.prefilling + self.decoding)

    def is_aged(self, request):
        return request.long and self.now - request.arrival > self.threshold


def simulate(requests, policy, config):
    """Serve `requests` under `policy`; returns (run, batches): a dict of lists and scalars, and one dict a batch."""
    if policy.name not in POLICY_NAMES:
        raise ValueError(f"the twin knows no policy {policy.name!r}")
    everyone = read_requests(requests)
    for r in everyone:
        needs = r.prompt + r.response if config.kv_projection == "reserve-all" else r.prompt
        if needs > safe_tokens(config):
            raise ValueError(f"request {r.index} needs {needs} tokens, the limit is {safe_tokens(config)}")
    engine = Engine(policy, config, coming=sorted(everyone, key=lambda r: (r.arrival, r.index)))
    while engine.coming or engine.waiting or engine.prefilling or engine.decoding:
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
    started, first_chunks = admit(engine, engine.config.token_budget - decode_tokens - continued)
    live = engine.live_kv()
    row["duration_s"] = pass_time(engine, decode_tokens + continued + first_chunks)
    complete(engine)
    engine.waits += [r.wait() for r in started if r.long or engine.policy.aging_classes == "all"]
    row |= {
        "decode_tokens": decode_tokens,
        "prefill_tokens": continued + first_chunks,
        "live_kv_tokens": live,
        "counter": engine.counter,
        "debt": engine.debt,
        "admissions": len(started),
        "promotions": sum(r.promoted for r in started),
    }
    engine.batches.append(row)


def take_arrivals(engine):
    join_queue(engine)
    if not (engine.waiting or engine.prefilling or engine.decoding):
        engine.now = engine.coming[0].arrival
        join_queue(engine)


def join_queue(engine):
    while engine.coming and engine.coming[0].arrival <= engine.now:
        engine.waiting.append(engine.coming.pop(0))


def set_threshold(engine):
    if engine.policy.name in AGING and engine.waits:
        engine.threshold = quantile(engine.waits, engine.policy.aging_quantile)


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
    chunk = min(request.prompt - request.prefilled, left)
    request.prefilled += chunk
    return chunk


def admit(engine, budget):
    """Start requests while budget is left; returns those started and the tokens of their first chunks."""
    left = budget
    started, refused = [], []
    promoting = True
    while left > 0 and engine.waiting:
        candidate, by_aging = next_candidate(engine, promoting)
        if projected_kv(engine, candidate, left) > safe_tokens(engine.config):
            if candidate not in refused:
                refused.append(candidate)
            if by_aging and any(not r.long for r in engine.waiting):
                promoting = False  # passed over: the rest of this boundary goes on in ordinary order
                continue
            break
        engine.waiting.remove(candidate)
        engine.prefilling.append(candidate)
        candidate.start = engine.now
        candidate.promoted = by_aging
        candidate.aged_at_start = engine.is_aged(candidate)
        if by_aging:
            clear_debt(engine, "start")
        left -= prefill_chunk(candidate, left)
        started.append(candidate)
    engine.blocked += len(refused)
    return started, budget - left


def projected_kv(engine, candidate, left):
    """KV tokens once the candidate is in: with which part of what is still to come, says the engine's option."""
    live = engine.live_kv()
    return {
        "reserve-prompt": live + sum(r.prompt - r.prefilled for r in engine.prefilling) + candidate.prompt,
        "prompt": live + candidate.prompt,
        "chunk": live + min(candidate.prompt, left),
        "reserve-all": sum(r.prompt + r.response for r in [*engine.prefilling, *engine.decoding, candidate]),
    }[engine.config.kv_projection]


def next_candidate(engine, promoting):
    """The request to try next and whether it comes by aging; `waiting` is never empty and in order of arrival."""
    name = engine.policy.name
    shorts = [r for r in engine.waiting if not r.long]
    longs = [r for r in engine.waiting if r.long]
    aged = [r for r in longs if engine.is_aged(r)]
    if name == "FCFS":
        return engine.waiting[0], False
    if name == "AA" and promoting and aged:
        return aged[0], True
    if name == "QBA" and promoting and engine.debt and longs:
        paying = any(r.promoted for r in engine.prefilling)
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
    for r in [r for r in engine.prefilling if r.prefilled == r.prompt]:
        r.prefill_end = engine.now
        engine.prefilling.remove(r)
        engine.decoding.append(r)
        if engine.policy.name == "QBA":
            credit_prefill(engine, r)


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
        "promoted_fraction": fraction(engine, everyone, [r.promoted for r in everyone]),
        "aged_fraction": fraction(engine, everyone, [r.aged_at_start for r in everyone]),
    }


def fraction(engine, everyone, flags):
    longs = sum(r.long for r in everyone)
    if engine.policy.name not in AGING or longs == 0:
        return math.nan
    return sum(flags) / longs
