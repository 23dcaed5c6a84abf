"""Remote traces: addresses, hidden secrets, broken connections, partial objects."""

from __future__ import annotations

import gzip
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from goldens import called

from molprof.analysis.reader.remote import has_secret, is_remote, placed, remote_text

CONTENT = {"traceEvents": [tiny_trace.work("kernel", "a", 0, 5, 1)], "traceName": "trace.json"}
# Noise, so that much of it is left out where it is cut.
WHOLE = gzip.compress(json.dumps({**CONTENT, "noise": [hash(str(number)) for number in range(20_000)]}).encode())


class Server(http.server.BaseHTTPRequestHandler):
    """Sends less than it promises unless the name begins with `whole`."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(404 if "absent" in self.path else 200)
        self.send_header("Content-Length", str(len(WHOLE)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(WHOLE[: len(WHOLE) if "/whole" in self.path else 50_000])
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    for name in ("fsspec", "aiohttp"):
        pytest.importorskip(name, reason="the extra remote is not installed")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_an_address_keeps_its_secrets_apart() -> None:
    whole = placed("https://me:pass@host/a/b.json.gz?X-Amz-Signature=secret")
    assert remote_text(whole) == "https://host/a/b.json.gz"
    assert has_secret(whole)
    other = placed("https://host/a/b.json.gz?v=2")
    assert remote_text(other) == "https://host/a/b.json.gz#2"  # another file
    assert placed("https://host/a/b.json.gz?v=2") == other
    assert remote_text(placed("s3://bucket/a b?.json")) == "s3://bucket/a b?.json"
    assert not has_secret(placed("s3://bucket/a b?.json"))
    assert [is_remote(path) for path in ("s3://b/k", Path("gs://b/k"), "s3", "./s3:/b", "/s3:/b")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_a_trace_is_read_from_a_server(tmp_path: Path, server: str) -> None:
    code, out, said = called(
        ["report", f"http://u:secret@{server}/whole.json.gz?s=secret", "--format", "json"], tmp_path
    )
    assert (code, json.loads(out)["counts"]["kernels"]) == (0, 1)
    assert json.loads(out)["trace"]["path"] == f"http://{server}/whole.json.gz"
    assert "secret" not in out + said


def test_a_broken_connection_is_an_error_without_secrets(tmp_path: Path, server: str) -> None:
    code, out, said = called(["report", f"http://{server}/cut.json.gz?s=secret"], tmp_path)
    assert (code, out) == (3, "")
    assert f"cannot read http://{server}/cut.json.gz" in said
    assert "secret" not in said
    code, _, said = called(["report", f"http://{server}/absent.json.gz?s=secret"], tmp_path)
    assert (code, "secret" in said) == (2, False)
    assert f"cannot read http://{server}/absent.json.gz: there is no such file" in said


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """A server of S3 with the bucket `traces`, and its client."""
    pytest.importorskip("s3fs", reason="the extra remote is not installed")
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "ACCESS_KEY_ID": "AKIAKEY",
        "SECRET_ACCESS_KEY": "hidden",
        "DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    client = boto3.client("s3")
    client.create_bucket(Bucket="traces")
    yield client, port
    client.close()
    server.stop()


@contextmanager
def cutting(port: int, after: int) -> Iterator[int]:
    """Yield the port of a server before that of S3, which breaks the connection of a PUT after so many bytes."""

    def forward(mine: socket.socket) -> None:
        with mine, socket.create_connection(("127.0.0.1", port)) as other:
            head = mine.recv(1 << 16)
            if head.startswith(b"PUT"):
                other.sendall(head[: head.index(b"\r\n\r\n") + 4 + after])
                return
            other.sendall(head)
            while data := other.recv(1 << 16):
                mine.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=forward, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_a_part_is_whole_or_not_there(tmp_path: Path, bucket: tuple[Any, int], monkeypatch: pytest.MonkeyPatch) -> None:
    client, port = bucket

    def keys() -> list[str]:
        return [item["Key"] for item in client.list_objects_v2(Bucket="traces").get("Contents", ())]

    (tmp_path / "job").mkdir()
    for rank in range(2):
        content = {**CONTENT, "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}}
        tiny_trace.write(tmp_path / "job" / f"r{rank}.json", content)
    rows = ["report", "rows", "job", "--parts", "s3://traces/rows/", "--no-cache", "--format", "json"]
    ranks = ["ranks", "job", "--parts", "s3://traces/ranks/", "--format", "json"]
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with cutting(port, 40) as before:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{before}")
        for line in (rows, ranks):
            code, _, said = called(line, tmp_path)
            assert (code, "the connection failed" in said) == (3, True), said
    assert keys() == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    first = [called(line, tmp_path) for line in (rows, ranks)]
    assert [item[0] for item in first] == [0, 0], first
    assert len(keys()) == 4
    stored = {key: client.get_object(Bucket="traces", Key=key)["LastModified"] for key in keys()}
    client.delete_object(Bucket="traces", Key=(lost := max(key for key in keys() if key.startswith("ranks/"))))
    assert [called(line, tmp_path)[:2] for line in (rows, ranks)] == [item[:2] for item in first]
    assert lost in keys()
    again = {key: client.get_object(Bucket="traces", Key=key)["LastModified"] for key in keys()}
    assert [key for key in again if key != lost and again[key] != stored[key]] == []
    joined = called(["ranks", "s3://traces/ranks/", "--format", "json"], tmp_path)
    assert joined[:2] == first[1][:2], joined[2]


def test_a_bucket_is_a_folder_of_traces(
    tmp_path: Path, bucket: tuple[Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = bucket
    client.put_object(Bucket="traces", Key="day/whole.json.gz", Body=WHOLE)
    client.put_object(Bucket="traces", Key="day/partial.json.gz", Body=WHOLE[:50_000])
    code, out, said = called(["report", "rows", "s3://traces/day/", "--parts", "parts", "--format", "json"], tmp_path)
    line = ["report", "rows", "s3://traces/day/", "--parts", "s3://traces/parts/", "--no-cache", "--format", "json"]
    first, again = called(line, tmp_path), called(line, tmp_path)
    joined = called(["report", "rows", "s3://traces/parts/", "--format", "json"], tmp_path)
    added = [called(["history", "add", "s3://traces/day/whole.json.gz", "--to", "s3://traces/h/"], tmp_path)[0::2]] * 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    gone = called(line, tmp_path)
    assert json.loads(first[1]) == json.loads(again[1]) == json.loads(joined[1]) == json.loads(out)
    assert added[0] == (0, "s3://traces/day/whole.json.gz added to s3://traces/h: whole\n")
    assert (gone[0], "the connection failed" in gone[2]) == (3, True)
    assert code == 3
    assert "1 of 2 traces read, 1 failed because s3://traces/day/partial.json.gz: gzip data is truncated" in said
    assert [row["figures"].get("kernels") for row in json.loads(out)] == [None, 1]
    assert not {"AKIAKEY", "hidden"} & set((out + said).split())
