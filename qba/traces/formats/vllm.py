"""The JSON that ``vllm bench serve`` (earlier benchmark_serving.py) writes: one object, with a list for each quantity.

``input_lens`` and ``output_lens`` are there with ``--save-detailed`` only, and ``start_times`` (seconds of a clock that
starts anywhere) since January 2026 only (vllm-project/vllm, pull request 32667). Requests stand in the order in which they were
handed out; a failed one has its message in ``errors`` and 0 output tokens.
"""

from qba.traces.formats.form import Format

FORMAT = Format(
    name="vllm-bench",
    source="vllm-project/vllm (vLLM's serving benchmark)",
    arrival="start_times",
    prompt="input_lens",
    response="output_lens",
    clock="seconds",
    # The second is what is left without --save-detailed: recognised, to say what is missing.
    signatures=(("input_lens", "output_lens"), ("completed", "total_input_tokens", "request_throughput")),
    failure="errors",
    hint="`vllm bench serve --save-result --save-detailed` writes it (start_times since vLLM of January 2026)",
)
