"""Writing traces, and drawing ones too long for memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qba
from qba.traces import draw_2024, draw_week, read_dated, write_trace, writer
from qba.traces.standin import WEEK_RATE


def test_what_is_written_is_read_back(tmp_path):
    drawn = draw_2024(500, seed=3)
    path = write_trace(drawn, tmp_path / "t.csv", start="2024-05-10 23:59:59")
    trace = read_dated(path, strict=True)
    assert trace.start == np.datetime64("2024-05-10T23:59:59")
    np.testing.assert_allclose(trace.requests.arrival_s, drawn.arrival_s, rtol=0, atol=0.5000001e-6)
    assert (trace.requests.prompt_tokens == drawn.prompt_tokens).all()
    assert (trace.requests.response_tokens == drawn.response_tokens).all()


def test_blocks_do_not_show(tmp_path, monkeypatch):
    drawn = draw_2024(100, seed=4)
    whole = write_trace(drawn, tmp_path / "whole.csv").read_bytes()
    monkeypatch.setattr(writer, "ROWS_AT_ONCE", 7)
    assert write_trace(drawn, tmp_path / "blocks.csv").read_bytes() == whole
    assert whole.count(b"\n") == 101 and whole.startswith(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.0"
    )


def test_the_text_of_a_row(tmp_path):
    requests = qba.Requests(arrival_s=[0, 86_399.9999996], prompt_tokens=[1, 2**31 - 1], response_tokens=[5, 6])
    assert write_trace(requests, tmp_path / "t.csv").read_text() == (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.000000+00:00,1,5\n2024-05-11 00:00:00.000000+00:00,2147483647,6\n"
    )


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


def test_a_long_trace_is_drawn_in_parts(tmp_path):
    parts = list(draw_week(10_500, seed=5, at_once=1000))
    assert [len(part) for part in parts] == [1000] * 10 + [500]
    arrivals = np.concatenate([part.arrival_s for part in parts])
    assert (np.diff(arrivals) > 0).all() and arrivals[0] == 0
    # Gaps between parts are gaps like the others: a part's last request is followed by a drawn gap.
    assert arrivals[-1] * WEEK_RATE == pytest.approx(10_500, rel=0.1)
    between = np.diff(arrivals)[999::1000] * WEEK_RATE
    assert 0.1 < between.mean() < 4
    trace = read_dated(write_trace(draw_week(10_500, seed=5, at_once=1000), tmp_path / "t.csv"), strict=True)
    assert trace.rows == 10_500
    np.testing.assert_allclose(trace.requests.arrival_s, arrivals, rtol=0, atol=0.51e-6)
    assert (trace.requests.prompt_tokens == np.concatenate([part.prompt_tokens for part in parts])).all()


def test_drawing_refuses_what_is_no_number():
    for arguments in ((0,), (1.5,), (5, 0, 0)):
        with pytest.raises(qba.InputError, match="draw_week"):
            list(draw_week(*arguments))
