"""BurstGPT: with or without ``Session ID`` and ``Elapsed time``; a failed request has 0 response tokens."""

from qba.traces.formats.form import Format

FORMAT = Format(
    name="burstgpt",
    source="HPMLL/BurstGPT (BurstGPT: a real-world workload dataset to optimize LLM serving systems, KDD 2025)",
    arrival="Timestamp",
    prompt="Request tokens",
    response="Response tokens",
    clock="seconds",
)
