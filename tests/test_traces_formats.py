"""Each format that is known: recognised by its columns, and read as its publishers mean it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import qba
from qba.traces import FORMATS, TraceWarning, read_dated, read_trace
from qba.traces.formats import recognise
from real_traces import real_trace

DATA = Path(__file__).parent / "data"
FILES, DIRTY = DATA / "traces", DATA / "dirty"


def columns(requests):
    return requests.arrival_s.tolist(), requests.prompt_tokens.tolist(), requests.response_tokens.tolist()


@pytest.mark.parametrize(
    ("filename", "name", "found"),
    [
        ("ok_zone_and_whole_seconds.csv", "azure", ([0, 0.5, 1.123456789], [1948, 20, 3], [3, 4, 5])),
        ("ok_burstgpt.csv", "burstgpt", ([0, 40], [472, 1087], [18, 230])),
        ("ok_mooncake.jsonl", "mooncake", ([0, 0, 3.052], [6758, 7322, 2290], [500, 490, 316])),
        ("ok_vidur.parquet", "vidur", ([0, 1.5], [3, 4], [5, 6])),
        (
            "ok_vllm.json",
            "vllm-bench",
            (
                [0, 353400.485208009 - 353399.725848632, 353400.911278355 - 353399.725848632],
                [10, 20, 40],
                [2, 3, 4],
            ),
        ),
    ],
)
def test_a_clean_file_of_each_format(filename, name, found):
    trace = read_dated(FILES / filename, strict=True)
    assert (trace.format, trace.rows, trace.account()) == (name, len(found[0]), [])
    assert columns(trace.requests) == found


def test_azure_with_images():
    with pytest.warns(TraceWarning):
        trace = read_dated(DIRTY / "azure_lmm.csv.gz")
    assert trace.format == "azure-lmm-2025"
    assert columns(trace.requests) == ([0, 0.123], [30, 1200], [40, 30])
    assert trace.start == np.datetime64("2024-10-15T00:00:00")
    assert trace.notes == ("images are not modelled: ContextTokens counts their tokens, NumImages is left aside",)


def test_burstgpt_with_sessions():
    with pytest.warns(TraceWarning, match="1 of 3 rows dropped: response tokens 0"):
        trace = read_dated(DIRTY / "burstgpt_sessions.csv")
    assert trace.format == "burstgpt" and columns(trace.requests) == ([0, 41], [472, 10], [18, 20])


def test_vllm_leaves_failed_requests_out():
    with pytest.warns(TraceWarning, match="1 of 4 rows dropped: request failed"):
        failed = read_dated(DIRTY / "vllm_failed_request.json")
    assert columns(failed.requests) == columns(read_trace(FILES / "ok_vllm.json"))
    with pytest.warns(TraceWarning, match="1 of 4 rows dropped: response tokens 0"):
        indented = read_dated(DIRTY / "vllm_indented.json")  # without the list of errors
    assert columns(indented.requests) == columns(failed.requests)


def test_lists_of_other_names(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"at": [1, 2.5], "in": [3, 4], "out": [5, 6], "note": "a"}))
    found = read_trace(path, {"arrival": "at", "prompt": "in", "response": "out"})
    assert columns(found) == ([0, 1.5], [3, 4], [5, 6])


def test_formats_are_told_apart():
    assert len({form.name for form in FORMATS}) == len(FORMATS)
    for form in FORMATS:
        needed = {*form.columns, *(form.signatures[0] if form.signatures else ())}
        assert recognise("t.csv, line 1", sorted(needed) + ["other"]) is form
        assert form.source


@pytest.mark.parametrize(
    ("filename", "rows", "first", "last"),
    [
        ("AzureLLMInferenceTrace_code.csv", 8_819, "2023-11-16T18:17:03.9799600", "2023-11-16T19:14:19.9280160"),
        ("AzureLLMInferenceTrace_conv.csv", 19_366, "2023-11-16T18:15:46.6805900", "2023-11-16T19:14:08.4025270"),
        ("azure-2024-conversation-excerpt.csv", 186, "2024-05-12T01:00:00.088263", "2024-05-12T01:00:08.034102"),
    ],
)
def test_published_azure_files(filename, rows, first, last):
    path = real_trace(filename)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = read_dated(path, strict=True)
    requests = trace.requests
    assert (len(requests), trace.dropped, trace.format) == (rows, 0, "azure")
    assert trace.start == np.datetime64(first)
    span = (np.datetime64(last, "ns") - np.datetime64(first, "ns")).astype(int)
    assert requests.arrival_s[-1] == span / 1e9


@pytest.mark.parametrize(
    ("filename", "rows"), [("mooncake_conversation_trace.jsonl", 12_031), ("mooncake_synthetic_trace.jsonl", 3_993)]
)
def test_published_mooncake_files(filename, rows):
    """Checked against each line as Python's own json reads it."""
    path = real_trace(filename)
    trace = read_dated(path, strict=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (trace.format, len(lines), trace.start) == ("mooncake", rows, None)
    milliseconds = np.array([line["timestamp"] for line in lines])
    assert (trace.requests.arrival_s == (milliseconds - milliseconds[0]) / 1000).all()
    assert trace.requests.prompt_tokens.tolist() == [line["input_length"] for line in lines]
    assert trace.requests.response_tokens.tolist() == [line["output_length"] for line in lines]


def test_vidur_stores_the_conversation_trace():
    vidur = read_trace(real_trace("vidur_splitwise_conv_head.csv"))
    azure = read_trace(real_trace("AzureLLMInferenceTrace_conv.csv"))
    n = len(vidur)
    assert n == 199
    np.testing.assert_allclose(vidur.arrival_s, azure.arrival_s[:n], rtol=0, atol=1e-9)
    assert (vidur.prompt_tokens == azure.prompt_tokens[:n]).all()
    assert (vidur.response_tokens == azure.response_tokens[:n]).all()


def test_an_unknown_format_lists_what_is_there(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",".join(f"c{k}" for k in range(12)) + "\n")
    with pytest.raises(qba.InputError, match="'c7' and 4 more; for another format give columns="):
        read_trace(path)
