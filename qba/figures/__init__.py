"""Figures: plain functions from datasets to Altair charts. They average and select, and never simulate."""

import sys

# Altair imports jsonschema, which builds a parser of web addresses if it finds the package for it, and JupyterLab brings
# that: a second or two at each start, for a format that no chart holds.
if "jsonschema" not in sys.modules:
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # to import, that is: not installed
    import altair as altair

    del sys.modules["rfc3987_syntax"]

from qba.figures.azure import azure_2023, table2
from qba.figures.engine import batch_timeline, lengths
from qba.figures.paper import (
    aging_tail,
    load_mean,
    load_tail,
    model_mean,
    prediction_errors,
    quota_mean,
    quota_tail,
)
from qba.figures.precision import half_widths, horizon
from qba.figures.profiles import profile_fit
from qba.figures.published import FIGURES, Figure, draw, draw_all, reader, specification, to_svg
from qba.figures.ratios import scorecard
from qba.figures.style import POLICY_STYLE, use

__all__ = [
    "FIGURES",
    "POLICY_STYLE",
    "Figure",
    "aging_tail",
    "azure_2023",
    "batch_timeline",
    "draw",
    "draw_all",
    "half_widths",
    "horizon",
    "lengths",
    "load_mean",
    "load_tail",
    "model_mean",
    "prediction_errors",
    "profile_fit",
    "quota_mean",
    "quota_tail",
    "reader",
    "scorecard",
    "specification",
    "table2",
    "to_svg",
    "use",
]
