"""Published files: where they are searched for, how their identity is checked, what a failed download says."""

from __future__ import annotations

import gc
import hashlib
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import qba
from qba.traces import DownloadError, MissingTraceError, fetch_azure_2023, find, registry
from qba.traces.registry import AZURE_2023, REGISTRY, TraceFile, fetch
from real_traces import real_trace

CONTENT = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44"


# The HTTP client leaves the socket of an answer that it gave up on to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def nothing_outlives_a_test():
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("download "):
            thread.join(10)
            assert not thread.is_alive()
    gc.collect()


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A published file of two lines, and an empty data folder."""
    file = TraceFile("tiny", "http://127.0.0.1/tiny.csv", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), rows=1)
    monkeypatch.setitem(REGISTRY, "tiny", file)
    monkeypatch.delenv("QBA_DATA_DIR", raising=False)
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(registry, "data_dir", lambda: tmp_path / "data")
    return file


def put(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tiny.csv").write_bytes(content)
    return folder / "tiny.csv"


def test_order_of_search(tiny, tmp_path, monkeypatch):
    in_data = put(tmp_path / "data")
    assert find("tiny") == in_data
    in_chosen = put(tmp_path / "chosen")
    monkeypatch.setenv("QBA_DATA_DIR", str(tmp_path / "chosen"))
    assert find("tiny") == in_chosen
    explicit = put(tmp_path / "explicit")
    assert find("tiny", tmp_path / "explicit") == find("tiny", explicit) == explicit
    in_chosen.unlink()
    assert find("tiny") == in_data


def test_what_is_nowhere_is_said_in_one_line(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("QBA_DATA_DIR", str(tmp_path))
    with pytest.raises(MissingTraceError) as caught:
        find("tiny")
    message = str(caught.value)
    assert f"no tiny.csv in {tmp_path}, {tmp_path / 'data'}; get it with `qba fetch" in message and "\n" not in message
    put(tmp_path / "data")
    with pytest.raises(MissingTraceError):
        find("tiny", tmp_path / "elsewhere")  # an explicit path is the only place


def test_another_file_of_that_name_is_refused(tiny, tmp_path):
    put(tmp_path / "data", CONTENT + b"\r\n")
    with pytest.raises(
        qba.InputError, match="tiny.csv: sha256 is .*, but tiny as published has .* remove it"
    ) as caught:
        find("tiny")
    assert not isinstance(caught.value, MissingTraceError)


def test_wrong_names_and_folders(tiny, monkeypatch):
    with pytest.raises(qba.InputError, match="no published trace 'azure'; there are azure-2023-code, azure-2023-conv"):
        find("azure")
    monkeypatch.setenv("QBA_DATA_DIR", "no/such/folder")
    with pytest.raises(qba.InputError, match="QBA_DATA_DIR = 'no/such/folder', but it must name a folder"):
        find("tiny")


@contextmanager
def serving(answer):
    """A server on this machine; ``answer`` writes the response to one request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/tiny.csv"
        finally:
            server.shutdown()
            thread.join()


def send(content):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def at(url: str) -> TraceFile:
    return TraceFile("tiny", url, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), rows=1)


@pytest.mark.parametrize("progress", [False, True])
def test_download(tmp_path, progress, capsys):
    with serving(send(CONTENT)) as url:
        assert fetch([at(url)], tmp_path / "new" / "data", 10, progress) == [tmp_path / "new" / "data" / "tiny.csv"]
    assert (tmp_path / "new" / "data" / "tiny.csv").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new" / "data").iterdir()] == ["tiny.csv"]
    assert ("tiny.csv: " in capsys.readouterr().err) == progress
    fetch([at(url)], tmp_path / "new" / "data", 10)  # there already: the server is gone


def test_a_file_already_there_is_checked(tmp_path):
    put(tmp_path, b"something else")
    with pytest.raises(qba.InputError, match="tiny.csv: sha256 is"):
        fetch([at("http://127.0.0.1:9/tiny.csv")], tmp_path, 1)
    assert (tmp_path / "tiny.csv").read_bytes() == b"something else"


def refused(handler):
    handler.send_error(404, "Gone fishing")


def mute(handler):
    time.sleep(1)


def trickle(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(10):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("answer", "timeout", "reason"),
    [
        (refused, 10, "the server answered 404 Gone fishing"),
        (send(CONTENT[:-1]), 10, r"what came is not the published file \(its SHA-256 differs\)"),
        (mute, 0.2, r"no complete answer within 0.2 s"),
        (trickle, 0.3, r"no complete answer within 0.3 s"),
    ],
)
def test_failed_downloads_leave_nothing(tmp_path, answer, timeout, reason):
    with serving(answer) as url:
        started = time.monotonic()
        with pytest.raises(
            DownloadError, match=f"^tiny.csv cannot be downloaded: {reason}; get {url} by other"
        ) as caught:
            fetch([at(url)], tmp_path, timeout, progress=False)
        assert time.monotonic() - started < timeout + 1
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_no_server(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(DownloadError, match="no connection to the server"):
        fetch([at(f"http://127.0.0.1:{port}/tiny.csv")], tmp_path, 10, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_no_network(tmp_path, monkeypatch):
    """Looking up the name hangs, as it does on some machines without a network: no HTTP timeout covers that."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: time.sleep(0.8) or [])
    started = time.monotonic()
    with pytest.raises(DownloadError, match="AzureLLMInferenceTrace_code.csv cannot be downloaded: no complete answer"):
        fetch_azure_2023(tmp_path, timeout=0.2, progress=False)
    assert time.monotonic() - started < 0.7
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments(tmp_path):
    with pytest.raises(qba.InputError, match="timeout = 0"):
        fetch([], tmp_path, timeout=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(qba.InputError, match="downloads cannot be put there"):
        fetch([at("http://127.0.0.1:9/tiny.csv")], tmp_path / "file" / "data", 1)


def test_readme_names_the_published_files():
    text = (Path(__file__).parents[1] / "data" / "README.md").read_text()
    for file in AZURE_2023:
        assert f"| {file.filename} | {file.rows:,} | `{file.sha256}` |" in text


@pytest.mark.parametrize("file", AZURE_2023, ids=lambda file: file.name)
def test_real_files_are_the_published_ones(file):
    path = real_trace(file.filename)
    assert find(file.name, path.parent) == find(file.name, path) == path
    assert path.stat().st_size == file.size
    assert len(qba.traces.read_trace(path)) == file.rows
