"""Azure LLM inference traces of 2023 and 2024: the same columns, the later ones with ``+00:00`` after the stamp."""

from qba.traces.formats.form import Format

FORMAT = Format(
    name="azure",
    source="Azure/AzurePublicDataset: 2023 (Splitwise, ISCA 2024) and 2024 (DynamoLLM, HPCA 2025)",
    arrival="TIMESTAMP",
    prompt="ContextTokens",
    response="GeneratedTokens",
    clock="stamps",
)
