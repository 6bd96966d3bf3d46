"""The default engine under FCFS as a SimPy model: what a user would write who knows SimPy. For `make bench` alone."""

from __future__ import annotations

from collections import deque

import simpy


def simulate(requests, config) -> tuple[list[float], list[float], int]:
    """Start and finish of each request, in s, and the number of batches."""
    n = len(requests)
    start, finish = [0.0] * n, [0.0] * n
    prompt, response = requests.prompt_tokens.tolist(), requests.response_tokens.tolist()
    waiting: deque[int] = deque()
    state = {"batches": 0, "bell": None}
    first = float(requests.arrival_s[0])
    env = simpy.Environment(initial_time=first)

    def arrivals():
        for r, arrival in enumerate(requests.arrival_s.tolist()):
            if arrival > env.now:
                yield env.timeout(arrival - env.now)
            waiting.append(r)
            if state["bell"] is not None and not state["bell"].triggered:
                state["bell"].succeed()

    def engine():
        decoding: list[list[int]] = []  # [request, tokens to come]
        partial = None  # [request, prompt tokens to come]
        live = done = 0
        while done < n:
            if not decoding and partial is None and not waiting:
                state["bell"] = env.event()
                yield state["bell"]
            left, joined = config.token_budget, []
            for share in decoding:
                take = min(config.decode_block, share[1], left)
                share[1] -= take
                left -= take
                if left == 0:
                    break
            live += config.token_budget - left
            if partial is not None:
                take = min(partial[1], left)
                partial[1] -= take
                left -= take
                live += take
                if partial[1] == 0:
                    joined.append([partial[0], response[partial[0]]])
                    partial = None
            while left > 0 and waiting:
                r = waiting[0]
                if live + (partial[1] if partial else 0) + prompt[r] > config.kv_safe_tokens:
                    break
                waiting.popleft()
                start[r] = env.now
                take = min(prompt[r], left)
                left -= take
                live += take
                if take == prompt[r]:
                    joined.append([r, response[r]])
                else:
                    partial = [r, prompt[r] - take]
            load = config.token_budget - left
            yield env.timeout(config.batch_overhead_s + config.token_time_s * max(0.0, load - config.knee_tokens))
            state["batches"] += 1
            for r, rest in decoding:
                if rest == 0:
                    finish[r] = env.now
                    live -= prompt[r] + response[r]
                    done += 1
            decoding = [share for share in decoding if share[1]] + joined

    env.process(arrivals())
    env.process(engine())
    env.run()
    return start, finish, state["batches"]
