"""Files come in blocks: wherever they are cut, the rows, the counts and the lines in messages are the same."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import qba
from qba.traces import TraceWarning, read_dated, read_trace
from qba.traces.tables import csv_table, json_table, parquet_table
from strategies import SMALL

DATA = Path(__file__).parent / "data"
NAMES = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EPOCH = np.datetime64("2024-05-12T01:00:00", "ns")

lengths = st.integers(1, 10_000_000)
gaps = st.sampled_from([0, 1, 1_000, 10**9]) | st.integers(0, 10**13)  # nanoseconds; ties are common
rows = st.lists(st.tuples(gaps, lengths, lengths), min_size=1, max_size=30)
block_sizes = st.integers(200, 600)


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("blocks")


def read_in_blocks(path, size=200, **options):
    """Read with the smallest blocks that hold a row; no warnings."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        patch.setattr(csv_table, "BLOCK_BYTES", size)
        patch.setattr(json_table, "BLOCK_ROWS", 3)
        patch.setattr(parquet_table, "BLOCK_ROWS", 3)
        return read_dated(path, **options)


def stamps(cells):
    """Stamps of the rows, exact, and their nanoseconds since the first."""
    since_first = np.cumsum([gap for gap, _, _ in cells]) - cells[0][0]
    return [
        str(EPOCH + np.timedelta64(int(gap), "ns")).replace("T", " ") + "+00:00" for gap in since_first
    ], since_first


def same(trace, cells, since_first):
    assert trace.requests.arrival_s.tolist() == (since_first / 1e9).tolist()
    assert trace.requests.prompt_tokens.tolist() == [prompt for _, prompt, _ in cells]
    assert trace.requests.response_tokens.tolist() == [response for _, _, response in cells]
    assert trace.start == EPOCH


@SMALL
@given(cells=rows, size=block_sizes, end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans(), final=st.booleans(),
       packed=st.booleans(), quoted=st.booleans(), blank=st.integers(0, 3))  # fmt: skip
def test_what_is_written_is_read(tmp_path_factory, cells, size, end, bom, final, packed, quoted, blank):
    times, since_first = stamps(cells)
    mark = '"' if quoted else ""
    lines = [",".join(NAMES)]
    lines += [",".join(f"{mark}{cell}{mark}" for cell in (time, *row[1:])) for time, row in zip(times, cells)]
    text = "\ufeff" * bom + (end * (1 + blank)).join(lines) + end * final
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    trace = read_in_blocks(path, size, strict=True)
    same(trace, cells, since_first)
    assert (trace.rows, trace.account()) == (len(cells), [])


@SMALL
@given(cells=rows, text=st.booleans())
def test_json_lines_and_parquet_say_the_same(tmp_path_factory, cells, text):
    folder = tmp_path_factory.mktemp("others")
    times, since_first = stamps(cells)
    kind = str if text else int
    table = [
        dict(zip(NAMES, (time, kind(prompt), kind(response)))) for time, (_, prompt, response) in zip(times, cells)
    ]
    (folder / "t.jsonl").write_text("\n\n".join(map(json.dumps, table)))
    parquet.write_table(pa.Table.from_pylist(table), folder / "t.parquet")
    typed = pa.table({NAMES[0]: pa.array(EPOCH + since_first.astype("timedelta64[ns]"), pa.timestamp("ns", "Asia/Tokyo")),
                      **{name: [row[k] for row in cells] for k, name in enumerate(NAMES[1:], 1)}})  # fmt: skip
    parquet.write_table(typed, folder / "typed.parquet")
    for path in sorted(folder.iterdir()):
        same(read_in_blocks(path, strict=True), cells, since_first)


DIRT = {
    "header repeated": NAMES,
    "response tokens 0": ("2024-05-12 00:00:00+00:00", "5", "0"),
    "response tokens missing": ("2024-05-13 00:00:00+00:00", "5", "None"),
    "prompt tokens 0": ("2024-05-12 01:00:00.5+00:00", "0.0", "5"),
    "prompt tokens missing": ("2024-05-12 01:00:00+00:00", "", "5"),
    "response tokens above 10,000,000": ("2024-05-12 01:00:00+00:00", "1", "10000001"),
    "prompt tokens above 10,000,000": ("2024-05-12 01:00:00+00:00", "1e30", "5"),
}


@SMALL
@given(
    cells=rows,
    dirt=st.lists(st.tuples(st.sampled_from(sorted(DIRT)), st.integers(0, 30)), max_size=12),
    size=block_sizes,
)
def test_inserted_dirt_is_counted_and_nothing_else_changes(tmp_path_factory, cells, dirt, size):
    times, since_first = stamps(cells)
    lines = [",".join(map(str, (time, *row[1:]))) for time, row in zip(times, cells)]
    for reason, place in dirt:
        lines.insert(min(place, len(lines)), ",".join(DIRT[reason]))
    path = tmp_path_factory.mktemp("dirt") / "t.csv"
    path.write_text("\n".join([",".join(NAMES), *lines]))
    trace = read_in_blocks(path, size)
    same(trace, cells, since_first)
    reasons = [reason for reason, _ in dirt]
    assert trace.counts == {reason: reasons.count(reason) for reason in reasons}
    assert (trace.rows, trace.dropped) == (len(lines), len(dirt))


@SMALL
@given(cells=rows, order=st.randoms(use_true_random=False), size=block_sizes)
def test_shuffled_rows_are_sorted_again(tmp_path_factory, cells, order, size):
    times, since_first = stamps(cells)
    shuffled = list(range(len(cells)))
    order.shuffle(shuffled)
    lines = [f"{times[k]},{cells[k][1]},{cells[k][2]}" for k in shuffled]
    path = tmp_path_factory.mktemp("shuffled") / "t.csv"
    path.write_text("\n".join([",".join(NAMES), *lines]))
    trace = read_in_blocks(path, size)
    expected = sorted(shuffled, key=lambda k: since_first[k])  # stable: ties as in the file
    same(trace, [cells[k] for k in expected], since_first[expected])
    late = sum(since_first[k] < max(since_first[shuffled[: i + 1]]) for i, k in enumerate(shuffled))
    assert trace.counts == ({"rows out of order": late} if late else {})


@pytest.mark.parametrize("wrong", [0, 1, 37, 99])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_place_of_a_mistake_is_exact_in_any_block(folder, wrong, kind):
    numbers = [-1 if k == wrong else k + 1 for k in range(100)]
    path = folder / f"t.{kind}"
    if kind == "csv":
        rows = [f'2024-05-12 01:00:{k % 60:02}+00:00,{n},3,"two\nlines"\n\n' for k, n in enumerate(numbers)]
        path.write_text("\nTIMESTAMP,ContextTokens,GeneratedTokens,Text\n" + "".join(rows))
        place = f"line {3 + 3 * wrong}"
    else:
        table = [{"arrived_at": k, "num_prefill_tokens": n, "num_decode_tokens": 3} for k, n in enumerate(numbers)]
        path.write_text("\n\n".join(map(json.dumps, table)))
        place = f"line {1 + 2 * wrong}"
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(table), path)
        place = f"row {1 + wrong}"
    with pytest.raises(qba.InputError, match=rf", {place}, column \w+: '-1', but lengths"):
        read_in_blocks(path, 300)


@pytest.mark.parametrize("name", sorted(path.name for path in (DATA / "broken").glob("*.csv")))
def test_damage_reads_the_same_in_small_blocks(name):
    path = DATA / "broken" / name
    with pytest.raises(qba.InputError) as whole:
        read_trace(path)
    with pytest.raises(qba.InputError) as blocks:
        read_in_blocks(path)
    assert str(blocks.value) == str(whole.value)


def test_a_row_longer_than_a_block_is_refused(folder):
    path = folder / "t.csv"
    path.write_text('TIMESTAMP,ContextTokens,GeneratedTokens,Text\n2024-05-12 01:00:00Z,1,2,"' + "x" * 5000 + '"\n')
    assert len(read_trace(path)) == 1
    with pytest.raises(qba.InputError, match="t.csv: cannot be read as CSV"):
        read_in_blocks(path)


def test_an_open_quote_is_found_in_a_long_file(folder):
    path = folder / "t.csv"
    row = "2024-05-12 01:00:00Z,1,2\n"
    path.write_text(",".join(NAMES) + "\n" + row * 50 + '2024-05-12 01:00:00Z,"1,2\n' + row * 500)
    with pytest.raises(qba.InputError, match=r"line 52: not well-formed CSV \(unexpected end of data\)"):
        read_in_blocks(path)


def test_quotes_within_a_cell_are_no_damage(folder):
    path = folder / "t.csv"
    row = '2024-05-12 01:00:00Z,1,2,5" disk\n2024-05-12 01:00:00Z,3,4,"said ""no"",\nand left"\n'
    path.write_text(",".join(NAMES) + ",Note\n" + row * 200)
    for size in range(200, 330):
        assert read_in_blocks(path, size, strict=True).requests.prompt_tokens.tolist() == [1, 3] * 200


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (b"", b""),
        (b"a,b", b""),
        (b"a,b\nc", b"a,b\n"),
        (b"a,b\r\nc,d\r", b"a,b\r\nc,d\r"),
        (b'a,"b\nc"\nd', b'a,"b\nc"\n'),
        (b'a,b\nc,"d\ne', b"a,b\n"),
        (b'"a\n""b\n"\nc', b'"a\n""b\n"\n'),
        (b'a,b\nc,"d""\ne', b"a,b\n"),
        (b'a,5" \nb\nc', b'a,5" \nb\n'),
    ],
)
def test_blocks_end_where_rows_end(text, rows):
    assert text[: csv_table._end_of_rows(text)] == rows


def test_reading_can_be_given_up_at_once():
    """A mistake in the first block leaves nothing running that would keep Python from ending."""
    code = """
import gzip, pathlib, sys, qba
path = pathlib.Path(sys.argv[1])
path.write_bytes(gzip.compress(b"arrived_at,num_prefill_tokens,num_decode_tokens\\n0,-1,2\\n" + b"1,2,3\\n" * 3_000_000, 1))
try:
    qba.read_trace(path)
except qba.InputError as error:
    print(error)
"""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "t.csv.gz"
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert "line 2, column num_prefill_tokens: '-1'" in done.stdout and not done.stderr


def test_thousands_of_ties_keep_their_order(folder):
    path = folder / "t.csv"
    prompts = np.random.default_rng(0).integers(1, 10_000, 20_000)
    path.write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n"
        + "".join(f"{k // 5000},{p},1\n" for k, p in enumerate(prompts))
    )
    trace = read_in_blocks(path, 4000, strict=True)
    assert (trace.requests.prompt_tokens == prompts).all()


# --- against a naive reader -------------------------------------------------------------------------------------------

CELLS = ["1", "2", "374.0", "+7", " 8 ", "1e2", "10000000", "0", "-0", "0.0", "", "NaN", "null", "None", "10000001", "1e300",
         "-1", "3.5", "many", "inf", "0x10", "1_0", "1,000", "٣", "nan nan"]  # fmt: skip
TIMES = ["0", "1.5", "2", "2.25", "-3", " 4", "1e1", "99999999999", "100000000000", "", "NaN", "inf", "x", "0x1"]


def naive(cells, strict):
    """The rules row by row in plain Python: the kept rows and counts, or the row and column of the first mistake."""
    kept, counts, latest = [], {}, None

    def number(text):
        text = text.strip()
        if text.lower() in ("", "nan", "null", "none"):
            return None
        plain = text.isascii() and "_" not in text and "x" not in text.lower()
        return float(text) if plain else float("x")

    for row, cell in enumerate(cells):
        found, reasons = {}, []
        for name, text in zip(("arrival", "prompt", "response"), cell):
            try:
                found[name] = number(text)
                assert found[name] is not None or name != "arrival"
                assert found[name] is None or abs(found[name]) < (1e11 if name == "arrival" else np.inf)
                assert found[name] is None or name == "arrival" or (found[name] >= 0 and found[name] % 1 == 0)
            except (ValueError, AssertionError):
                return row, name
        for name in ("response", "prompt"):
            tokens = found[name]
            if tokens is None:
                reasons.append((f"{name} tokens missing", name))
            elif tokens == 0:
                reasons.append((f"{name} tokens 0", name))
            elif tokens > 10_000_000:
                reasons.append((f"{name} tokens above 10,000,000", name))
        if not reasons:
            if latest is not None and found["arrival"] < latest:
                reasons.append(("rows out of order", "arrival"))
            latest = max(found["arrival"], found["arrival"] if latest is None else latest)
            kept.append((found["arrival"], found["prompt"], found["response"]))
        if reasons and strict:
            return row, sorted(reasons, key=lambda reason: ("arrival", "response", "prompt").index(reason[1]))[0][1]
        if reasons:
            counts[reasons[0][0]] = counts.get(reasons[0][0], 0) + 1
    return sorted(kept, key=lambda row: row[0]), counts


@SMALL
@given(
    cells=st.lists(st.tuples(st.sampled_from(TIMES[:8]), *[st.sampled_from(CELLS[:16])] * 2), min_size=1, max_size=25),
    wrong=st.none() | st.tuples(st.integers(0, 24), st.integers(0, 2), st.sampled_from(CELLS[16:])),
    late=st.none() | st.tuples(st.integers(0, 24), st.sampled_from(TIMES[8:])),
    strict=st.booleans(),
    size=block_sizes,
)
def test_the_rules_are_those_of_a_naive_reader(tmp_path_factory, cells, wrong, late, strict, size):
    cells = [list(row) for row in cells]
    if wrong:
        cells[wrong[0] % len(cells)][wrong[1]] = wrong[2]
    if late:
        cells[late[0] % len(cells)][0] = late[1]
    names = {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "response": "num_decode_tokens"}
    path = tmp_path_factory.mktemp("naive") / "t.csv"
    rows = "".join(",".join(f'"{cell}"' if "," in cell else cell for cell in row) + "\n" for row in cells)
    path.write_text(",".join(names.values()) + "\n" + rows, "utf-8")
    kept, counts = naive(cells, strict)
    if isinstance(kept, int):
        with pytest.raises(qba.InputError, match=rf"t\.csv, line {kept + 2}, column {names[counts]}: "):
            read_in_blocks(path, size, strict=strict)
    elif not kept:
        with pytest.raises(qba.InputError, match=r"t\.csv: no row is left: "):
            read_in_blocks(path, size)
    else:
        trace = read_in_blocks(path, size, strict=strict)
        columns = (trace.requests.arrival_s, trace.requests.prompt_tokens, trace.requests.response_tokens)
        assert list(zip(*(column.tolist() for column in columns))) == [(a - kept[0][0], p, r) for a, p, r in kept]
        assert trace.counts == counts


@pytest.mark.parametrize("name", ["ok_crlf_no_final_newline.csv", "ok_other_columns.csv", "ok_mooncake.jsonl",
                                  "ok_vllm.json", "ok_gzip.csv.gz", "ok_vidur.parquet"])  # fmt: skip
def test_bytes_changed_at_random_are_read_or_refused_in_one_line(tmp_path_factory, name):
    whole = (DATA / "traces" / name).read_bytes()
    columns = {"arrival": "when", "prompt": "in", "response": "out"} if "other" in name else None
    path = tmp_path_factory.mktemp("changed") / name

    @SMALL
    @given(places=st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=3),
           end=st.integers(1, len(whole)))  # fmt: skip
    def check(places, end):
        changed = bytearray(whole)
        for place, value in places:
            changed[place] = value
        path.write_bytes(changed[:end])
        try:
            assert len(read_in_blocks(path, columns=columns).requests)
        except qba.InputError as error:
            assert str(error).startswith(str(path)) and str(error).isprintable()

    check()
