"""Production traces: readers, windows of equal request count, the published files, and a stand-in for a missing one."""

from qba.traces.formats import CLOCKS, FORMATS, Format
from qba.traces.readers import Trace, TraceWarning, drop_oversize, read_dated, read_trace
from qba.traces.registry import DownloadError, MissingTraceError, fetch_azure_2023, find
from qba.traces.standin import draw_2024, draw_week, standin_2024
from qba.traces.windows import interarrival_scv, length_correlation, merge, relabel, rescale, scale_lengths, windows
from qba.traces.writer import write_trace

__all__ = [
    "CLOCKS",
    "DownloadError",
    "FORMATS",
    "Format",
    "MissingTraceError",
    "Trace",
    "TraceWarning",
    "draw_2024",
    "draw_week",
    "drop_oversize",
    "fetch_azure_2023",
    "find",
    "interarrival_scv",
    "length_correlation",
    "merge",
    "read_dated",
    "read_trace",
    "relabel",
    "rescale",
    "scale_lengths",
    "standin_2024",
    "windows",
    "write_trace",
]
