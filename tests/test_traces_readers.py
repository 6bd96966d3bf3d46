"""Reading traces: what is repaired, what is dropped, what is refused and how the refusal reads.

The files in data/broken and data/dirty stand beside what a user is told about each: MESSAGES.txt (refused), ACCOUNTS.txt
(read, and what was counted), STRICT.txt (the latter with ``strict=True``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import qba
from qba.traces import CLOCKS, TraceWarning, drop_oversize, read_dated, read_trace

FILES = Path(__file__).parent / "data" / "traces"

ROWS = ([0.0, 4.314579, 4.541877], [374, 396, 879], [44, 109, 55])

BROKEN, DIRTY = FILES.with_name("broken"), FILES.with_name("dirty")
"""Files that are refused; files that are read with an account of what was dropped, sorted or left aside."""


def columns(requests):
    return requests.arrival_s.tolist(), requests.prompt_tokens.tolist(), requests.response_tokens.tolist()


def files(folder):
    return sorted(path for path in folder.iterdir() if path.suffix != ".txt")


def told(folder, filename):
    """The lines of a list of messages, by the name of the file that each begins with."""
    messages = {}
    for line in (folder / filename).read_text("utf-8").splitlines():
        messages.setdefault(re.match(r"[\w.]+", line)[0], []).append(line)
    return messages


@pytest.mark.parametrize("path", files(BROKEN), ids=lambda path: path.name)
def test_damage_is_refused_in_one_line(path):
    with pytest.raises(qba.InputError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert [message.replace(f"{BROKEN}{os.sep}", "", 1)] == told(BROKEN, "MESSAGES.txt")[path.name]
    assert message.isprintable()


@pytest.mark.parametrize("path", files(DIRTY), ids=lambda path: path.name)
def test_dirt_is_counted_and_told(path):
    with pytest.warns(TraceWarning) as caught:
        trace = read_dated(path)
    account = told(DIRTY, "ACCOUNTS.txt")[path.name]
    assert [f"{path.name}: {line}" for line in trace.account()] == account
    assert [str(warning.message) for warning in caught] == [f"{DIRTY}{os.sep}{line}" for line in account]
    assert len(trace.requests) == trace.rows - trace.dropped


@pytest.mark.parametrize("path", files(DIRTY), ids=lambda path: path.name)
def test_strict_refuses_the_first_row_that_would_be_counted(path):
    told_strictly = told(DIRTY, "STRICT.txt").get(path.name)
    if told_strictly is None:
        with pytest.warns(TraceWarning, match="not modelled"):
            assert not read_dated(path, strict=True).counts
        return
    with pytest.raises(qba.InputError) as caught:
        read_trace(path, strict=True)
    assert [str(caught.value).replace(f"{DIRTY}{os.sep}", "", 1)] == told_strictly


def test_every_message_belongs_to_a_file():
    for folder, filename in ((BROKEN, "MESSAGES.txt"), (DIRTY, "ACCOUNTS.txt")):
        assert list(told(folder, filename)) == [path.name for path in files(folder)]
    assert set(told(DIRTY, "STRICT.txt")) <= {path.name for path in files(DIRTY)}
    assert len(files(BROKEN)) >= 25


@pytest.mark.parametrize("strict", [False, True])
def test_harmless_oddities_are_read(strict):
    assert columns(read_trace(FILES / "ok_crlf_no_final_newline.csv", strict=strict)) == ROWS
    with pytest.warns(TraceWarning, match="images are not modelled"):
        assert columns(read_trace(DIRTY / "bom_blank_lines_extra_columns.csv", strict=strict)) == ROWS


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
        (
            {"arrival": "when", "prompt": "in", "response": "answer"},
            "no column 'answer' to read the response from; there",
        ),
        ({"arrival": "When", "prompt": "in", "response": "out"}, "are 'when', 'in', 'out', 'who'; did you mean 'when'"),
        ({"arrival": "when", "prompt": "in", "response": "in"}, "three different columns"),
    ],
)
def test_wrong_names_are_refused(given, message):
    with pytest.raises(qba.InputError, match=message):
        read_trace(FILES / "ok_other_columns.csv", columns=given)


def test_rows_without_response_are_dropped_and_counted():
    with pytest.warns(TraceWarning):
        trace = read_dated(DIRTY / "zero_and_missing_response.csv")
    assert (trace.rows, trace.dropped) == (6, 3)
    assert trace.counts == {"response tokens 0": 2, "response tokens missing": 1}
    assert columns(trace.requests) == ROWS


def test_the_count_is_short_where_there_is_one_reason(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,0\n1,2,3\n")
    with pytest.warns(TraceWarning, match=r"1 of 2 rows dropped: response tokens 0$") as caught:
        read_trace(path)
    assert caught[0].filename == __file__  # the warning points at the caller's line


def test_lines_are_counted_through_blank_lines(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\narrived_at,num_prefill_tokens,num_decode_tokens\n0,1,2\n\n\n1,2.5,3\n")
    with pytest.raises(qba.InputError, match="line 6, column num_prefill_tokens: '2.5'"):
        read_trace(path)


def test_no_file_and_a_directory(tmp_path):
    with pytest.raises(qba.InputError, match="no such file"):
        read_trace(tmp_path / "nowhere.csv")
    with pytest.raises(qba.InputError, match="is a directory, but a file is expected"):
        read_trace(tmp_path)


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


# --- clocks -----------------------------------------------------------------------------------------------------------

GIVEN = {"arrival": "when", "prompt": "in", "response": "out"}


def table_of(tmp_path, *arrivals):
    path = tmp_path / "t.csv"
    path.write_text("when,in,out\n" + "".join(f"{arrival},1,2\n" for arrival in arrivals))
    return path


@pytest.mark.parametrize(
    ("arrivals", "unit", "gap"),
    [
        (("1715475600123", "1715475601623"), "milliseconds", 1.5),
        (("1715475600123.5", "1715475601623.5"), "milliseconds", 1.5),
        (("1715475600123456", "1715475601623456"), "microseconds", 1.5),
        (("1715475600123456789", "1715475600123456790"), "nanoseconds", 1e-9),
    ],
)
def test_large_numbers_are_counts_since_1970_and_told(tmp_path, arrivals, unit, gap):
    path = table_of(tmp_path, *arrivals)
    with pytest.warns(TraceWarning, match=f"column when read as {unit} since 1970"):
        trace = read_dated(path, GIVEN)
    assert trace.requests.arrival_s[1] == gap
    assert trace.start.astype("datetime64[s]") == np.datetime64("2024-05-12T01:00:00")
    assert trace.notes and not trace.counts
    # Said by the user, it needs no saying.
    assert read_dated(path, GIVEN, clock=unit).account() == []


def test_plain_numbers_are_seconds(tmp_path):
    trace = read_dated(table_of(tmp_path, "1715475600", "1715475601.5"), GIVEN, strict=True)
    assert trace.requests.arrival_s.tolist() == [0, 1.5] and trace.start is None
    assert read_trace(table_of(tmp_path, "-3", "-1", "4e2"), GIVEN).arrival_s.tolist() == [0, 2, 403]


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        (("5", "1715475600123"), "line 3, column when: '1715475600123', but the first row counts seconds"),
        (("1715475600123", "1715475600"), "line 3, column when: '1715475600', but the first row counts milliseconds"),
        (
            ("1715475600123", "1715475600123456"),
            "line 3, column when: '1715475600123456', but the first row counts milli",
        ),
        (
            ("5", "2024-05-12 01:00:00"),
            "line 3, column when: '2024-05-12 01:00:00', but arrivals must be finite numbers",
        ),
        (("2024-05-12 01:00:00", "5"), "line 3, column when: '5', but arrivals must be dates .* give clock="),
        (("nan", "5"), "line 2, column when: 'nan', but arrivals must be finite numbers of seconds"),
        (("1e25", "1e25"), "line 2, column when: '1e25', but the first row counts nanoseconds"),
    ],
)
def test_a_mixture_of_clocks_is_refused(tmp_path, arrivals, message):
    with pytest.raises(qba.InputError, match=message):
        read_trace(table_of(tmp_path, *arrivals), GIVEN)


def test_the_clock_can_be_given(tmp_path):
    path = table_of(tmp_path, "500", "1750")
    found = {clock: read_trace(path, GIVEN, clock=clock).arrival_s[1] for clock in CLOCKS if clock != "stamps"}
    assert found == {"seconds": 1250, "milliseconds": 1.25, "microseconds": 1250e-6, "nanoseconds": 1250e-9}
    with pytest.raises(qba.InputError, match="line 2, column when: '500', but arrivals must be dates"):
        read_trace(path, GIVEN, clock="stamps")
    with pytest.raises(qba.InputError, match="clock = 'hours', but it must be one of stamps, seconds, milliseconds"):
        read_trace(path, GIVEN, clock="hours")
    with pytest.raises(qba.InputError, match="'1715475600123', but arrivals must be below 1e.11 seconds"):
        read_trace(table_of(tmp_path, "1715475600123"), GIVEN, clock="seconds")


def test_a_known_format_may_have_another_clock():
    trace = read_dated(BROKEN / "azure_epoch_milliseconds.csv", clock="milliseconds")
    assert trace.requests.arrival_s.tolist() == [0, 0.333]
    assert trace.start == np.datetime64("2024-05-12T01:00:00.123")


def test_columns_given_win_over_the_format():
    swapped = {"arrival": "timestamp", "prompt": "output_length", "response": "input_length"}
    trace = read_dated(FILES / "ok_mooncake.jsonl", swapped)
    assert columns(trace.requests) == ([0, 0, 3052], [500, 490, 316], [6758, 7322, 2290])
    assert trace.format == "columns as given"


def test_rows_are_sorted_and_ties_keep_their_order(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("when,in,out\n5,1,1\n2,2,1\n5,3,1\n2,4,1\n9,5,1\n")
    with pytest.warns(TraceWarning, match="2 of 5 rows out of order: sorted by arrival"):
        trace = read_dated(path, GIVEN)
    assert columns(trace.requests)[:2] == ([0, 0, 3, 3, 7], [2, 4, 1, 3, 5])
    assert trace.dropped == 0 and trace.counts == {"rows out of order": 2}


def test_strict_names_the_first_line_whatever_the_reason(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("when,in,out\n5,1,1\n2,2,1\n5,3,0\n")
    with pytest.raises(qba.InputError, match="line 3, column when: '2', but strict reading wants arrivals that never"):
        read_trace(path, GIVEN, strict=True)
