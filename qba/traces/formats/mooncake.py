"""Mooncake: JSON lines, whole milliseconds with many ties, and the hashes of the prompt's blocks (left aside)."""

from qba.traces.formats.form import Format

FORMAT = Format(
    name="mooncake",
    source="kvcache-ai/Mooncake (Mooncake: trading more storage for less computation, FAST 2025)",
    arrival="timestamp",
    prompt="input_length",
    response="output_length",
    clock="milliseconds",
)
