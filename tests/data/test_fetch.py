import gzip
import hashlib
import http.client
import io
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module

import pytest
from typer.testing import CliRunner

from fmrl.cli.data import app
from fmrl.datasets import fetch, registry
from fmrl.datasets.registry import Dataset, Item
from fmrl.errors import ArchiveError, ChecksumError, FetchError

from .conftest import left_behind

CONTENT = bytes(range(256)) * 20_000  # 5 MB


class Server:
    """One file over HTTP: with ranges or without, whole or cut off, and a list of the ranges
    asked for.
    """

    def __init__(self, content):
        self.content, self.cut, self.ranges, self.asked = content, None, True, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked = self.headers.get("Range")
                outer.asked.append(asked)
                start = int(asked.split("=")[1].rstrip("-")) if asked and outer.ranges else 0
                if start >= len(outer.content) and start:
                    self.send_error(416)
                    return
                body = outer.content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body if outer.cut is None else body[: outer.cut])

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/file.bin"


def together(work, count):
    """Run ``work`` in threads at the same time."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


@pytest.fixture
def server():
    s = Server(CONTENT)
    yield s
    s.http.shutdown()
    s.http.server_close()


@pytest.fixture
def entry(server, monkeypatch):
    def add(**kw):
        item = Item(kw.pop("name", "file.bin"), server.url, **kw)
        d = Dataset("toy", "Toy", "https://example.org/toy", "MIT", ((item,),), {}, "")
        monkeypatch.setitem(registry.DATASETS, "toy", d)
        return item

    return add


SHA = hashlib.sha256(CONTENT).hexdigest()


def test_downloads_once_checks_and_reports(entry, server):
    entry(sha256=SHA)
    seen = []
    found = fetch.get("toy", progress=lambda *a: seen.append(a))
    assert found.place == "cache" and found.path.read_bytes() == CONTENT
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    fetch.get("toy")
    assert len(server.asked) == 1


def test_resumes_where_it_stopped(entry, server):
    entry(sha256=SHA)
    server.cut = 2_000_000
    with pytest.raises(FetchError, match="run it again to resume"):
        fetch.get("toy")
    assert left_behind(fetch.cache_dir()) == ["toy/file.bin.part"]
    server.cut = None
    assert fetch.get("toy").path.read_bytes() == CONTENT
    assert server.asked[1] == "bytes=2000000-"
    assert left_behind(fetch.cache_dir()) == ["toy/file.bin"]


@pytest.mark.parametrize(("held", "ranges"), [(b"other bytes", False), (CONTENT, True)])
def test_a_partial_file_that_cannot_be_resumed_or_is_complete(entry, server, held, ranges):
    entry(sha256=SHA)
    part = fetch.cache_dir() / "toy/file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(held)
    server.ranges = ranges
    assert fetch.get("toy").path.read_bytes() == CONTENT


@pytest.mark.parametrize("pin", [{"sha256": "0" * 64}, {"md5": "0" * 32}])
def test_a_wrong_checksum_leaves_nothing(entry, pin):
    entry(**pin)
    with pytest.raises(ChecksumError, match="truncated or altered"):
        fetch.get("toy")
    assert left_behind(fetch.cache_dir()) == []


def test_without_a_pinned_hash_the_archive_must_open_and_the_first_hash_holds(entry, server):
    entry(name="file.tar.gz")
    with pytest.raises(ArchiveError):
        fetch.get("toy")
    assert left_behind(fetch.cache_dir()) == []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as t:
        t.addfile(tarfile.TarInfo("empty"))
    server.content = buffer.getvalue()
    path = fetch.get("toy").path
    path.write_bytes(gzip.compress(b"something else"))
    with pytest.raises(ChecksumError):
        fetch.get("toy")


def test_an_altered_cached_or_local_file_is_never_used(entry, tmp_path):
    entry(sha256=SHA)
    local = tmp_path / "local"
    local.mkdir()
    (local / "file.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(ChecksumError, match="delete it and fetch it again"):
        fetch.get("toy", local)


def test_local_comes_before_cache_and_download(entry, server, tmp_path, monkeypatch):
    entry(sha256=SHA)
    (tmp_path / "file.bin").write_bytes(CONTENT)
    monkeypatch.setenv("FMRL_DATA", str(tmp_path))
    assert fetch.get("toy").place == "local" and not server.asked


def test_offline_says_what_to_put_where(entry, server, tmp_path):
    entry(sha256=SHA)
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(FetchError) as e:
        fetch.get("toy", tmp_path)
    assert "could not download" in str(e.value)
    assert f"put file.bin in {tmp_path}" in str(e.value)
    assert "https://example.org/toy" in str(e.value)


def test_what_cannot_be_downloaded_says_so(tmp_path):
    with pytest.raises(FetchError, match="put train/, val/ and test/"):
        fetch.get("mini-imagenet", tmp_path)
    with pytest.raises(FetchError, match="no data set is called"):
        fetch.get("nothing")
    with pytest.raises(FetchError, match="does not exist"):
        fetch.get("omniglot", tmp_path / "nowhere")


def test_registry_is_complete():
    for d in registry.DATASETS.values():
        assert d.title and d.origin and d.licence and d.counts and d.variants
        for item in (i for v in d.variants for i in v):
            assert item.folder or item.url or item.sha256
        module, _, function = d.counter.partition(":")
        assert callable(getattr(import_module(module), function))


def test_command_line(entry):
    entry(sha256=SHA)
    got = CliRunner().invoke(app, ["get", "toy"])
    assert got.exit_code == 0 and "file.bin" in got.output


def test_two_processes_fetch_one_file_once(entry, server):
    pytest.importorskip("fcntl")
    entry(sha256=SHA)
    errors = []

    def fetch_it():
        try:
            assert fetch.get("toy").path.read_bytes() == CONTENT
        except Exception as e:  # pragma: no cover - the assertion below shows it
            errors.append(e)

    together(fetch_it, 4)
    assert not errors and len(server.asked) == 1
    assert left_behind(fetch.cache_dir()) == ["toy/file.bin"]


def test_one_writer_at_a_time(tmp_path):
    pytest.importorskip("fcntl")
    part, inside, most = tmp_path / "f.part", [], []

    def work():
        with fetch.alone(part):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.005)
            inside.pop()

    together(work, 5)
    assert most == [1] * 5 and left_behind(tmp_path) == []


def test_servers_that_answer_badly(entry, server, monkeypatch):
    entry(sha256=SHA)

    class Response:
        status, headers = 200, {"Content-Length": "many"}

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self, n):
            raise http.client.IncompleteRead(b"x")

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Response())
    with pytest.raises(FetchError, match="IncompleteRead"):
        fetch.get("toy")
    assert left_behind(fetch.cache_dir()) == []


def test_a_cache_that_cannot_be_made(entry, tmp_path, monkeypatch):
    entry(sha256=SHA)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FMRL_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="cannot be created"):
        fetch.get("toy")
