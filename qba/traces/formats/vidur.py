"""Traces as the Vidur simulator stores them, processed from others."""

from qba.traces.formats.form import Format

FORMAT = Format(
    name="vidur",
    source="microsoft/vidur (Vidur: a large-scale simulation framework for LLM inference, MLSys 2024)",
    arrival="arrived_at",
    prompt="num_prefill_tokens",
    response="num_decode_tokens",
    clock="seconds",
)
