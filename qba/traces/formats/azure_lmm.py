"""Azure trace of multimodal inference, 2025: gzip, one more column, stamps such as ``2024-10-15T00:00:00.123Z``."""

from qba.traces.formats.form import Format

FORMAT = Format(
    name="azure-lmm-2025",
    source="Azure/AzurePublicDataset: large multimodal models, 2025 (ModServe, SoCC 2025)",
    arrival="TIMESTAMP",
    prompt="ContextTokens",
    response="GeneratedTokens",
    clock="stamps",
    signatures=(("TIMESTAMP", "NumImages", "ContextTokens", "GeneratedTokens"),),
    notes=("images are not modelled: ContextTokens counts their tokens, NumImages is left aside",),
)
