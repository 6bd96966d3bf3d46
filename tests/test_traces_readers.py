"""Reading traces: what is repaired, what is dropped, what is refused and how the refusal reads."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import qba
from qba.traces import FORMATS, TraceWarning, draw_2024, drop_oversize, read_dated, read_trace, write_trace
from real_traces import real_trace

FILES = Path(__file__).parent / "data" / "traces"

ROWS = ([0.0, 4.314579, 4.541877], [374, 396, 879], [44, 109, 55])

REFUSED = {
    "binary.csv": "line 2: not UTF-8 text",
    "cut_before_last_cell.csv": "line 5, column GeneratedTokens: the file ends before the value",
    "cut_in_second_cell.csv": "line 5: '2023-11-16 18:15:52.0000000,87' has 2 cells, but the header has 3 columns",
    "day_without_time.csv": "line 3, column TIMESTAMP: '2023-11-16', but arrivals must be dates with times",
    "doubled_column.csv": "line 1: column ContextTokens is there 2 times",
    "empty.csv": "the file is empty",
    "fractional_prompt.csv": "line 5, column ContextTokens: '3.5', but lengths must be whole",
    "fractional_response.csv": "line 5, column GeneratedTokens: '1.5', but lengths must be whole",
    "header_only.csv": "there is a header but no row",
    "huge_prompt.csv": "line 5, column ContextTokens: '99999999999999999999', but lengths",
    "impossible_date.csv": "line 2, column TIMESTAMP: '2023-02-30 18:15:46.68', but arrivals must be dates",
    "infinite_prompt.csv": "line 5, column ContextTokens: 'inf', but lengths",
    "latin1.csv": "line 3: not UTF-8 text",
    "long_row.csv": "line 3: '2023-11-16 18:15:50.9951690,396,109,7' has 4 cells, but the header has 3",
    "missing_arrival.csv": "line 3, column TIMESTAMP: an empty cell, but arrivals",
    "missing_column.csv": "column GeneratedTokens of the format azure-2023 is missing; there are 'TIMESTAMP', 'Context",
    "missing_prompt.csv": "line 5, column ContextTokens: an empty cell, but lengths",
    "mixed_zones.csv": "line 3, column TIMESTAMP: '2023-11-16 18:15:50+00:00', but the first row has no time zone",
    "nan_arrival.csv": "line 3, column TIMESTAMP: 'NaN', but arrivals",
    "nan_prompt.csv": "line 5, column ContextTokens: 'NaN', but lengths",
    "nan_response.csv": "line 5, column GeneratedTokens: 'nan', but lengths",
    "negative_prompt.csv": "line 5, column ContextTokens: '-3', but lengths",
    "negative_response.csv": "line 5, column GeneratedTokens: '-1', but lengths",
    "no_header.csv": "line 1: no known format has these columns",
    "no_response_at_all.csv": "line 2, column GeneratedTokens: '0', but at least one row must have",
    "only_blank_lines.csv": "the file is empty",
    "only_commas.csv": "line 3, column TIMESTAMP: an empty cell",
    "open_quote.csv": "line 3: not well-formed CSV (unexpected end of data)",
    "renamed_columns.csv": "there are 'time', 'prompt', 'response'; for another format give columns=",
    "repeated_header.csv": "line 3, column TIMESTAMP: 'TIMESTAMP', but arrivals",
    "semicolons.csv": "there are 'TIMESTAMP;ContextTokens;GeneratedTokens'; for another",
    "short_row.csv": "line 3: '2023-11-16 18:15:50.9951690,396' has 2 cells, but the header has 3",
    "ten_digits.csv": "line 2, column TIMESTAMP: '2023-11-16 18:15:46.1234567891', but arrivals",
    "text_arrival.csv": "line 3, column TIMESTAMP: 'yesterday', but arrivals must be dates with times",
    "text_prompt.csv": "line 5, column ContextTokens: 'many', but lengths",
    "unsorted.csv": "line 3, column TIMESTAMP: '2023-11-16 18:15:46.6805900', but arrivals must be sorted, and line 2",
    "utf16.csv": "line 1: not UTF-8 text",
    "vidur_nan_arrival.csv": "line 3, column arrived_at: 'nan', but arrivals must be finite",
    "vidur_unsorted.csv": "line 3, column arrived_at: '0.5', but arrivals must be sorted, and line 2 has '1'",
    "zero_bytes.csv": "line 3: holds a zero byte",
    "zero_prompt.csv": "line 5, column ContextTokens: '0', but lengths",
}


def columns(requests):
    return requests.arrival_s.tolist(), requests.prompt_tokens.tolist(), requests.response_tokens.tolist()


@pytest.mark.parametrize("name", REFUSED)
def test_damage_is_refused_in_one_line(name):
    path = FILES / name
    with pytest.raises(qba.InputError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert REFUSED[name] in message
    assert "\n" not in message and message.isprintable()


def test_every_broken_file_is_tested():
    assert {path.name for path in FILES.iterdir() if not path.name.startswith("ok_")} == set(REFUSED)


@pytest.mark.parametrize("name", ["ok_crlf_no_final_newline.csv", "ok_bom_blank_lines_extra_column.csv"])
@pytest.mark.parametrize("strict", [False, True])
def test_harmless_oddities_are_read(name, strict):
    assert columns(read_trace(FILES / name, strict=strict)) == ROWS


def test_stamps_with_zone_and_without_fraction():
    trace = read_dated(FILES / "ok_zone_and_whole_seconds.csv")
    assert trace.requests.arrival_s.tolist() == [0.0, 0.5, 1.123456789]
    assert trace.start == np.datetime64("2024-05-12T01:00:00")


def test_seven_digits_are_exact():
    trace = read_dated(FILES / "ok_crlf_no_final_newline.csv")
    assert trace.start == np.datetime64("2023-11-16T18:15:46.680590000")
    assert trace.requests.arrival_s[1] == 4314579000 / 1e9


def test_vidur_counts_seconds_from_the_first_row():
    trace = read_dated(FILES / "ok_vidur.csv")
    assert columns(trace.requests) == ([0.0, 4.314579 - 1.5, 4.314579 - 1.5], [374, 396, 1], [44, 109, 2])
    assert trace.start is None


def test_other_columns_are_named():
    path = FILES / "ok_other_columns.csv"
    requests = read_trace(path, columns={"arrival": "when", "prompt": "in", "response": "out"})
    assert columns(requests) == ([0.0, 2.25, 3.0], [374, 396, 7], [44, 109, 8])


def test_named_columns_may_hold_stamps():
    names = {"arrival": "TIMESTAMP", "prompt": "GeneratedTokens", "response": "ContextTokens"}
    requests = read_trace(FILES / "ok_crlf_no_final_newline.csv", columns=names)
    assert columns(requests) == (ROWS[0], ROWS[2], ROWS[1])


def test_lines_are_counted_through_quoted_line_breaks(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('when,in,out,who\n1,2,3,"a\nb\nc"\n2,-1,3,d\n')
    with pytest.raises(qba.InputError, match="line 5, column in: '-1'"):
        read_trace(path, columns={"arrival": "when", "prompt": "in", "response": "out"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arrival": "when", "prompt": "in"}, "columns must be"),
        ({"arrival": "when", "prompt": "in", "response": "out", "user": "who"}, "columns must be"),
        (["when", "in", "out"], "columns must be"),
        ({"arrival": "when", "prompt": "in", "response": "answer"}, "no column 'answer' to read the response from"),
        ({"arrival": "when", "prompt": "in", "response": "in"}, "three different columns"),
    ],
)
def test_wrong_names_are_refused(given, message):
    with pytest.raises(qba.InputError, match=message):
        read_trace(FILES / "ok_other_columns.csv", columns=given)


def test_rows_without_response_are_dropped_and_counted():
    path = FILES / "ok_zero_and_missing_response.csv"
    with pytest.warns(TraceWarning) as caught:
        trace = read_dated(path)
    assert [str(w.message) for w in caught] == [
        f"{path}: 3 of 6 rows dropped: response tokens 0 (2) or response tokens missing (1)"
    ]
    assert trace.dropped == 3
    assert columns(trace.requests) == ROWS


def test_the_count_is_short_where_there_is_one_reason(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,0\n1,2,3\n")
    with pytest.warns(TraceWarning, match=r"1 of 2 rows dropped: response tokens 0$") as caught:
        read_trace(path)
    assert caught[0].filename == __file__  # the warning points at the caller's line


def test_strict_refuses_rows_without_response():
    with pytest.raises(qba.InputError, match="line 2, column GeneratedTokens: '0', but strict reading"):
        read_trace(FILES / "ok_zero_and_missing_response.csv", strict=True)


def test_lines_are_counted_through_blank_lines(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\narrived_at,num_prefill_tokens,num_decode_tokens\n0,1,2\n\n\n1,2.5,3\n")
    with pytest.raises(qba.InputError, match="line 6, column num_prefill_tokens: '2.5'"):
        read_trace(path)


def test_no_file_and_a_directory(tmp_path):
    with pytest.raises(qba.InputError, match="no such file"):
        read_trace(tmp_path / "nowhere.csv")
    with pytest.raises(qba.InputError, match="is a directory, but a trace file is expected"):
        read_trace(tmp_path)


def test_formats_have_distinct_columns():
    assert len({form.columns for form in FORMATS}) == len(FORMATS) == len({form.name for form in FORMATS})


def test_oversize_prompts_are_dropped_and_counted():
    requests = qba.Requests(arrival_s=[0, 1, 2, 3], prompt_tokens=[5734, 5735, 1, 9000], response_tokens=[1, 2, 3, 4])
    kept, dropped = drop_oversize(requests, qba.EngineConfig())
    assert dropped == 2
    assert columns(kept) == ([0.0, 2.0], [5734, 1], [1, 3])
    qba.simulate(kept, qba.FCFS())
    at_the_limit = qba.EngineConfig(kv_capacity=11468, kv_safety=0.5)
    assert at_the_limit.kv_safe_tokens == 5734
    assert drop_oversize(requests, at_the_limit)[1] == 2
    same, none = drop_oversize(kept, qba.EngineConfig())
    assert none == 0 and len(same) == 2
    with pytest.raises(qba.InputError, match="all 4 prompts are longer"):
        drop_oversize(requests.replace(prompt_tokens=[6000] * 4), qba.EngineConfig())


def test_what_is_written_is_read_back(tmp_path):
    drawn = draw_2024(500, seed=3)
    path = write_trace(drawn, tmp_path / "t.csv", start="2024-05-10 23:59:59")
    trace = read_dated(path, strict=True)
    assert trace.start == np.datetime64("2024-05-10T23:59:59")
    np.testing.assert_allclose(trace.requests.arrival_s, drawn.arrival_s, rtol=0, atol=0.5000001e-6)
    assert (trace.requests.prompt_tokens == drawn.prompt_tokens).all()
    assert (trace.requests.response_tokens == drawn.response_tokens).all()


def test_writing_refuses_bad_places(tmp_path):
    requests = draw_2024(3)
    for path in (tmp_path, tmp_path / "no" / "folder.csv"):
        with pytest.raises(qba.InputError, match="cannot be written"):
            write_trace(requests, path)
    with pytest.raises(qba.InputError, match="start = 'soon'"):
        write_trace(requests, tmp_path / "t.csv", start="soon")


def test_example_trace_is_what_its_generator_writes(tmp_path):
    committed = Path(__file__).parents[1] / "data" / "example_trace.csv"
    written = write_trace(draw_2024(2000), tmp_path / "example_trace.csv")
    assert written.read_bytes() == committed.read_bytes()


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
    assert (len(requests), trace.dropped) == (rows, 0)
    assert trace.start == np.datetime64(first)
    span = (np.datetime64(last, "ns") - np.datetime64(first, "ns")).astype(int)
    assert requests.arrival_s[-1] == span / 1e9


def test_vidur_stores_the_conversation_trace():
    vidur = read_trace(real_trace("vidur_splitwise_conv_head.csv"))
    azure = read_trace(real_trace("AzureLLMInferenceTrace_conv.csv"))
    n = len(vidur)
    assert n == 199
    np.testing.assert_allclose(vidur.arrival_s, azure.arrival_s[:n], rtol=0, atol=1e-9)
    assert (vidur.prompt_tokens == azure.prompt_tokens[:n]).all()
    assert (vidur.response_tokens == azure.response_tokens[:n]).all()
