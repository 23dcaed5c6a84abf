"""`molprof open` serves the trace, its tracks and first view, to this machine alone, and ends cleanly."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import native_trace
import pytest
import tiny_trace
from decoding_trace import decoding
from origin_trace import EVENTS
from rank_traces import events, write_rank
from trace_rows import SLICES, rows, x
from ui_server import get, prepared, serving

from molprof import api
from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.analysis.ui.contents import ABOVE, MAX_SLICES, Span, ViewTarget, longest
from molprof.analysis.ui.prepare import Prepared, View, load_for_remote, prepare
from molprof.analysis.ui.server import UiServer
from molprof.common.errors import QueryError, TraceError, UsageError

NAME_TRACKS = """
    SELECT DISTINCT thread.name AS name, thread.tid AS tid, process.name AS process, process.pid AS pid
    FROM slice JOIN thread_track ON thread_track.id = slice.track_id JOIN thread USING (utid) JOIN process USING (upid)
    ORDER BY process.pid, thread.tid
"""


def served(result: Prepared) -> TraceProcessor:
    engine = open_engine()
    engine.feed(result.trace.read_bytes())
    engine.finish()
    for package, keys in groupby(sorted(result.view.modules), lambda key: key.partition(".")[0]):
        engine.register_package(package, {key: result.view.modules[key] for key in keys})
    return engine


def strips(result: Prepared) -> dict[str, list[tuple[Any, ...]]]:
    """Slices of the strips that the view adds, by title, as the engine of the UI answers."""
    found = {}
    with served(result) as engine:
        for command, arguments in result.view.commands:
            if command == "dev.perfetto.RunQuery":
                engine.query(arguments[0])
            elif command == "dev.perfetto.AddDebugSliceTrack":
                found[arguments[1]] = rows(engine.query(arguments[0]), "ts", "dur", "name")
    return found


def test_a_captured_run_is_pinned_in_order_and_zoomed_to_its_typical_step(tmp_path: Path) -> None:
    result = prepared(tmp_path, tiny_trace.document())
    assert result.view.pinned == [
        "steps", "phases", "host syncs", "sequence, track 1", "sequence, track 2", "junk tokens",
        "GPU 0 stream 7", "GPU 0 stream 8", "GPU 0 idle",
    ]  # fmt: skip
    # Of the two decode steps the shorter, 100 to 180 us, with a margin that ends where the trace does.
    assert result.view.visible == Span(96_800, 83_200)
    assert result.notes == []
    found = strips(result)
    assert found["steps"] == [(0, 100_000, "step 1 (decode)"), (100_000, 80_000, "step 2 (decode)")]
    assert found["phases"][:2] == [(0, 60_000, "forward"), (60_000, 20_000, "processor")]
    assert len(found["phases"]) == 8
    assert found["host syncs"] == [
        (81_000, 2_000, "cudaMemcpyAsync in aten::_local_scalar_dense"),
        (84_000, 6_000, "cudaStreamSynchronize in aten::_local_scalar_dense"),
    ]
    assert found["junk tokens"] == [(100_000, 80_000, "abra (sequence 0)")]
    assert [row[:2] for row in found["GPU 0 idle"]] == [
        (70_000, 2_000), (80_000, 5_000), (87_000, 1_000), (89_000, 26_000), (130_000, 48_000),
    ]  # fmt: skip
    assert {row[2] for row in found["GPU 0 idle"]} <= set(IDLE_CAUSES.values())


def test_everything_that_the_reader_kept_is_served_with_its_args(tmp_path: Path) -> None:
    document = tiny_trace.document()
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    with served(prepared(tmp_path, document)) as engine:
        found = rows(engine.query("SELECT name, ts + 1000000 AS ts, dur FROM slice"))
        assert sorted(found) == sorted((e["name"], round(e["ts"] * 1000), e["dur"] * 1000) for e in complete)
        bytes_ = engine.query("SELECT EXTRACT_ARG(arg_set_id, 'args.bytes') AS b FROM slice WHERE name GLOB 'Memcpy*'")
        assert bytes_["b"].tolist() == [16]
        # molprof's own tables can be asked for in the UI.
        launches = engine.query("INCLUDE PERFETTO MODULE molprof.launches; SELECT launches FROM molprof_launch_count")
        assert launches["launches"].tolist() == [4]


def test_lanes_stand_beside_the_track_that_they_came_from(tmp_path: Path) -> None:
    def work(name: str, ts: float, dur: float, tid: int, pid: int = 0) -> dict[str, Any]:
        return x(name, ts, dur, pid=pid, tid=tid, cat="kernel", args={"device": pid, "stream": tid})

    content = [
        x("launch", 0, 1, pid=50, tid=50, cat="cuda_runtime"),
        work("a", 0, 10, 7), work("b", 5, 10, 7), work("c", 7, 10, 7),
        work("d", 0, 10, 20), work("e", 5, 10, 20),
        work("f", 0, 10, 21),
        work("g", 0, 10, 7, pid=1),
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    ]  # fmt: skip
    result = prepared(tmp_path, content)
    assert [name for name in result.view.pinned if "stream" in name] == [
        "GPU 0 stream 7", "GPU 0 stream 7 (overlapping 2), track 8", "GPU 0 stream 7 (overlapping 3), track 9",
        "GPU 0 stream 20", "GPU 0 stream 20 (overlapping 2), track 19", "GPU 0 stream 21", "GPU 1 stream 7",
    ]  # fmt: skip
    with served(result) as engine:
        assert rows(engine.query(NAME_TRACKS)) == [
            ("GPU 0 stream", 7, "GPU", 0),
            ("GPU 0 stream 7 (overlapping 2), track", 8, "GPU", 0),
            ("GPU 0 stream 7 (overlapping 3), track", 9, "GPU", 0),
            ("GPU 0 stream 20 (overlapping 2), track", 19, "GPU", 0),
            ("GPU 0 stream", 20, "GPU", 0),
            ("GPU 0 stream", 21, "GPU", 0),
            ("GPU 1 stream", 7, "GPU", 1),
            (None, 50, None, 50),
        ]
        assert [row[:6] for row in rows(engine.query(SLICES), "name", "ts", "dur", "tid", "home_tid", "depth")] == [
            ("a", 0, 10000, 7, None, 0), ("d", 0, 10000, 20, None, 0), ("f", 0, 10000, 21, None, 0),
            ("g", 0, 10000, 7, None, 0), ("launch", 0, 1000, 50, None, 0), ("b", 5000, 10000, 8, 7, 0),
            ("e", 5000, 10000, 19, 20, 0), ("c", 7000, 10000, 9, 7, 0),
        ]  # fmt: skip
    assert result.notes[0].endswith(
        "3 events on tracks named 'overlapping', for partial overlaps with others of their track"
    )


def test_two_files_have_processes_of_their_own_and_start_together(tmp_path: Path) -> None:
    first, second = tiny_trace.document(), tiny_trace.document()
    for document in (first, second):
        for number, (start, end) in enumerate([(1010, 1030), (1035, 1072)], 1):
            flow = {"cat": "ac2g", "name": "ac2g", "id": number}
            document["traceEvents"] += [
                {"ph": "s", "pid": 100, "tid": 100, "ts": start, **flow},
                {"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": end, **flow},
            ]
    # The second begins with something else, 500 us before its first step.
    second["traceEvents"].insert(0, tiny_trace.slice_("cpu_op", "before", 500, 10))
    result = prepared(tmp_path, first, second)
    assert [name for name in result.view.pinned if "GPU" in name or "steps" in name] == [
        "run0: steps", "run0: GPU 0 stream 7", "run0: GPU 0 stream 8", "run0: GPU 0 idle",
        "run1: steps", "run1: GPU 0 stream 7", "run1: GPU 0 stream 8", "run1: GPU 0 idle",
    ]  # fmt: skip
    found = strips(result)
    assert found["run0: steps"] == found["run1: steps"] == [
        (500_000, 100_000, "step 1 (decode)"), (600_000, 80_000, "step 2 (decode)"),
    ]  # fmt: skip
    assert result.view.visible == Span(596_800, 83_200)
    assert set(result.view.modules) == {"molprof.view"}  # the package's tables would mix the files
    with served(result) as engine:
        processes = engine.query("SELECT pid, name FROM process WHERE name IS NOT NULL ORDER BY pid")
        assert rows(processes) == [
            (0, "run0: GPU"), (1, "run1: GPU 0, process"), (100, "run0: process"), (101, "run1: process"),
            (900, "run0: molprof tokens"), (901, "run1: molprof tokens"),
        ]  # fmt: skip
        flows = engine.query(
            "SELECT a.ts, b.ts AS to_ts, b.name, p.name AS process FROM flow JOIN slice AS a ON a.id = slice_out"
            " JOIN slice AS b ON b.id = slice_in JOIN thread_track AS t ON t.id = b.track_id JOIN thread USING (utid)"
            " JOIN process AS p USING (upid) ORDER BY a.ts, p.name"
        )
        assert rows(flows) == [
            (510_000, 530_000, "sm90_xmma_gemm_bf16", "run0: GPU"),
            (510_000, 530_000, "sm90_xmma_gemm_bf16", "run1: GPU 0, process"),
            (535_000, 572_000, "fmha_cutlassF_bf16", "run0: GPU"),
            (535_000, 572_000, "fmha_cutlassF_bf16", "run1: GPU 0, process"),
        ]


@pytest.mark.parametrize(
    ("place", "start_ns", "dur_ns", "first"),
    [
        (ViewTarget(step=1), 0, 104_000, "sequence, track 1"),
        (ViewTarget(token=2), 96_800, 83_200, "sequence, track 1"),
        (ViewTarget(token=1, molecule=1), 0, 104_000, "sequence, track 2"),
        (ViewTarget(molecule=1), 0, 180_000, "sequence, track 2"),
    ],
)
def test_the_zoom_is_where_the_user_asks(
    tmp_path: Path, place: ViewTarget, start_ns: int, dur_ns: int, first: str
) -> None:
    view = prepared(tmp_path, tiny_trace.document(), place=place).view
    assert view.visible == Span(start_ns, dur_ns)
    assert next(name for name in view.pinned if name.startswith("sequence")) == first


@pytest.mark.parametrize(
    ("place", "message", "hint"),
    [
        (ViewTarget(step=9), "has no recorded step 9", "give --step one from 1 to 2"),
        (ViewTarget(token=0), "has no recorded token 0 of molecule 0", "give --token one from 1 to 2"),
        (ViewTarget(molecule=2), "has no recorded molecule 2", "give --molecule one from 0 to 1"),
    ],
)
def test_a_place_that_is_not_recorded_is_refused(tmp_path: Path, place: ViewTarget, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"(?m)run0.json {message}$") as error:
        prepared(tmp_path, tiny_trace.document(), place=place)
    assert error.value.hint == hint


def test_a_trace_without_steps_is_shown_whole(tmp_path: Path) -> None:
    view = prepared(tmp_path, [x("op", 0, 5)]).view
    assert (view.visible, view.pinned) == (None, [])
    assert prepared(tmp_path, *[[x("op", 0, 5)]] * 3).view.title == "run0.json+2_more"
    empty = prepared(tmp_path, [])
    assert empty.notes == [f"{tmp_path}/run0.json holds no events with a duration, so nothing was recorded"]
    with pytest.raises(UsageError, match="has no recorded steps to zoom to"):
        prepared(tmp_path, [x("op", 0, 5)], place=ViewTarget(step=0))


def test_layers_and_outer_operators_are_tracks_where_stacks_are_read(tmp_path: Path) -> None:
    found = strips(prepared(tmp_path, EVENTS))
    assert found["modules"] == [(3_000, 9_000, "Layer_0"), (13_000, 9_000, "Layer_1")]
    linear = [(at, 6_000, "aten::linear") for at in (5_000, 15_000)]
    assert found["operators"] == [*linear, (33_000, 5_000, "aten::copy_")]
    without = strips(prepared(tmp_path, EVENTS, stacks=False))
    assert not {"modules", "operators"} & without.keys()
    # Times are right where Python stacks begin earlier.
    document = tiny_trace.document()
    document["traceEvents"].append(tiny_trace.slice_("python_function", "main", 900, 300))
    starts = [strips(prepared(tmp_path, document, stacks=stacks))["steps"][0][0] for stacks in (True, False)]
    assert starts == [100_000, 0]


def test_a_native_trace_is_shown_as_the_same_run_in_json(tmp_path: Path) -> None:
    document = native_trace.named(tiny_trace.document())
    native = native_trace.write(tmp_path / "run.pftrace", document)
    plain = tiny_trace.write(tmp_path / "run.json", document)
    result, expected = (prepare([api.load(path)], tmp_path, ViewTarget()) for path in (native, plain))
    assert result.view.visible == expected.view.visible
    assert strips(result) == strips(expected)
    assert result.view.pinned == expected.view.pinned
    both = prepare([api.load(native), api.load(plain)], tmp_path, ViewTarget())
    assert both.notes == []


def test_of_a_damaged_trace_what_is_whole_is_shown(tmp_path: Path) -> None:
    path = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    path.write_bytes(path.read_bytes()[:2500])
    with pytest.raises(TraceError, match="is truncated"):
        prepare([api.load(path)], tmp_path, ViewTarget())
    result = prepare([api.load(path, partial=True)], tmp_path, ViewTarget())
    assert "is damaged, and only its whole part was read" in result.notes[0]
    assert "junk tokens" not in strips(result)  # these come last


def test_of_too_many_slices_the_longest_are_kept() -> None:
    strip = longest(ABOVE, "idle", [(ts, 1 + (ts == 7), "x") for ts in range(MAX_SLICES + 3)])
    assert (strip.title, strip.left_out, len(strip.slices)) == ("idle (longest 50,000)", 3, MAX_SLICES)
    assert (7, 2, "x") in strip.slices
    assert [row[0] for row in strip.slices] == list(range(MAX_SLICES))


def test_of_many_devices_some_are_shown(tmp_path: Path) -> None:
    work = [x("k", ts, 2, pid=device, tid=7, cat="kernel", args={"device": device, "stream": 7})
            for ts in (0, 9) for device in range(20)]  # fmt: skip
    result = prepared(tmp_path, work)
    assert len([name for name in result.view.pinned if name.endswith("idle")]) == 16
    assert "idle time is shown of 16 of 20 GPUs" in result.notes


@pytest.mark.parametrize(("files", "shown"), [(1, 6), (2, 2)])
def test_of_many_token_tracks_a_few_are_pinned(tmp_path: Path, files: int, shown: int) -> None:
    result = prepared(tmp_path, *[decoding(batch_size=9)] * files)
    before = "" if files == 1 else "run0: "
    assert len([name for name in result.view.pinned if name.startswith(f"{before}sequence")]) == shown
    assert f"{before}{shown} of 9 token tracks are pinned; the others stand in their process below" in result.notes


def view_of(server: UiServer) -> dict[str, Any]:
    """What the page knows of the view."""
    text = get(server, "view.js")[2].decode()
    data: dict[str, Any] = json.loads(text.split("const view = ", 1)[1].split(";\n", 1)[0])
    return data


def test_names_reach_the_script_as_text(tmp_path: Path) -> None:
    document = tiny_trace.document()
    hostile = "</script>'); DROP TABLE slice; --\u2028\" \\ ${1}"
    document["traceEvents"] += [tiny_trace.slice_("user_annotation", f"molprof.{hostile} batch=0 step=1", 1000, 100)]
    result = prepared(tmp_path, document)
    assert any(hostile.split()[0] in name for _, _, name in strips(result)["phases"])
    with serving(result) as server:
        assert "\u2028" not in get(server, "view.js")[2].decode()
        assert view_of(server)["visible"] == ["96800", "180000"]


def test_facts_are_packages_of_their_own(tmp_path: Path) -> None:
    """One message with all facts of a large trace is more than the UI's engine takes."""
    document = tiny_trace.document()
    document["traceEvents"] += [tiny_trace.slice_("user_annotation", f"molprof.{'x' * 999} batch=0 step=1", 1000, 100)]
    result = prepared(tmp_path, document)
    assert max(len(name) for _, _, name in strips(result)["phases"]) == 100
    with serving(result) as server:
        own = view_of(server)
        packages = [own["package"], *(json.loads(get(server, name)[2]) for name in own["more"])]
    assert [package["name"] for package in packages] == ["molprof", "molprof_facts_0"]
    served_modules = {module["name"]: module["sql"] for package in packages for module in package["modules"]}
    assert served_modules == result.view.modules


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UiServer]:
    trace = tmp_path / "trace.gz"
    trace.write_bytes(gzip.compress(b'{"traceEvents":[]}'))
    with serving(Prepared(trace, View("run.json.gz", [], {}, None, [], []), [])) as server:
        yield server


def test_the_page_and_its_parts_are_served_with_a_policy(server: UiServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, headers, page = get(server, "")
    assert status == 200
    version = next(iter(server.assets)).split("/")[0]
    assert f'src="{version}/frontend_bundle.js"'.encode() in page
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == policy["worker-src"] == "'self'"
    assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    status, headers, _ = get(server, f"{version}/trace_processor.wasm")
    assert (status, headers["Content-Type"]) == (200, "application/wasm")
    status, _, body = get(server, "trace/run.json.gz")
    assert (status, gzip.decompress(body)) == (200, b'{"traceEvents":[]}')
    assert get(server, "", host="localhost:8080")[0] == 200  # a forwarded port is this machine too
    with pytest.raises(UsageError, match=f"cannot listen on port {server.port} of 127.0.0.1"):
        UiServer(Prepared(server.trace, View("run", [], {}, None, [], []), []), server.port)


@pytest.mark.parametrize(
    ("path", "changes", "status"),
    [
        *(("", {"token": token}, 404) for token in ("x" * 32, "", "%C3%A9")),
        *(("", {"host": host}, 404) for host in ("evil.example", "127.0.0.1.evil.example:80", "")),
        *((path, {}, 404) for path in ("../../../../etc/passwd", "%2e%2e/index.html", "index.html", "status")),
        ("", {"method": "POST"}, 404),
        ("rpc", {"method": "POST"}, 404),  # without an engine nothing is answered
        ("", {"method": "PUT"}, 501),
    ],
)
def test_everything_else_is_not_found(server: UiServer, path: str, changes: dict[str, str], status: int) -> None:
    found, _, body = get(server, path, **changes)  # type: ignore[arg-type]
    assert (found, body == b"not found\n") == (status, status == 404)


def test_the_command_serves_ranks_on_one_clock_and_ends_with_a_signal(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "scratch").mkdir()
    write_rank(tmp_path / "ranks" / "0.json", 0)
    write_rank(tmp_path / "ranks" / "1.json.gz", 1, events(late=60, clock=5_000))
    environment = {**os.environ, "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22", "TMPDIR": str(tmp_path / "scratch")}
    process = subprocess.Popen(
        [sys.executable, "-m", "molprof", "open", "ranks"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with urlopen(f"{address}trace/0.json+1.json.gz", timeout=30) as response:
        content = json.loads(gzip.decompress(response.read()))["traceEvents"]
    ends = sorted(event["ts"] + event["dur"] for event in content if "nccl" in event["name"])
    assert ends == [200, 200, 400, 400]
    names = {event["args"]["name"] for event in content if event["name"] == "process_name"}
    assert {name.split(":")[0] for name in names} == {"rank 0", "rank 1"}
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=60)
    port = address.split(":")[2].split("/")[0]
    assert (process.returncode, rest) == (0, "")
    assert f"ssh -N -L {port}:127.0.0.1:{port} " in errors
    assert "@10.0.0.2, then open the address there" in errors
    assert errors.endswith("Ctrl-C ends it\nended\n")
    assert list((tmp_path / "scratch").iterdir()) == []


class _Client:
    """Carries an engine's messages to a server, as the UI does."""

    def __init__(self, server: UiServer) -> None:
        self._address = f"{server.address}rpc"

    def exchange(self, request: bytes) -> bytes:
        with urlopen(Request(self._address, data=request), timeout=60) as response:
            return bytes(response.read())

    def close(self) -> None:
        pass


def test_a_remote_engine_answers_one_client_after_the_other(tmp_path: Path) -> None:
    result = prepared(tmp_path, tiny_trace.document())
    with load_for_remote(result, None) as engine, serving(result, engine=engine) as server:
        status, _, body = get(server, "status")
        assert (status, b"run0.json" in body) == (200, True)
        for _ in range(2):
            client = TraceProcessor(_Client(server))
            assert client.query("SELECT COUNT() AS n FROM slice")["n"].tolist() == [34]
            with pytest.raises(QueryError, match="no such table: absent"):
                client.query("SELECT * FROM absent")
        assert get(server, "rpc", method="POST", token="x" * 32)[0] == 404
        assert get(server, "rpc", method="POST", host="evil.example")[0] == 404
        assert '"remote": true' in get(server, "view.js")[2].decode()
