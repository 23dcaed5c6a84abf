"""`molprof trim` keeps the chosen part of a trace, and its report claims nothing beyond it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from certificate_data import CORPUS, needs_traces
from conftest import Cli
from decoding_trace import decoding, launched
from page_data import render
from tiny_trace import slice_
from trace_rows import x

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.figures import Report
from molprof.analysis.reader.load import MANIFEST_HINT
from molprof.analysis.trim import Wish, trim
from molprof.common.errors import TraceError, UsageError


def trimmed(tmp_path: Path, content: Any, wish: Wish, name: str = "small.json") -> dict[str, Any]:
    content = {"traceEvents": content} if isinstance(content, list) else content
    trim(tiny_trace.write(tmp_path / "trace.json", content), tmp_path / name, wish)
    data = (tmp_path / name).read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    return found


def names(document: dict[str, Any], *categories: str) -> list[str]:
    return [event["name"] for event in document["traceEvents"] if event.get("cat") in categories]


def broken(found: Report) -> list[str]:
    return [check.id for check in found.checks if not check.holds]


def flow(number: int, start: int, end: int, name: str = "ac2g") -> list[dict[str, Any]]:
    first = {"ph": "s", "id": number, "pid": 100, "tid": 100, "ts": start, "cat": name, "name": name}
    return [first, {**first, "ph": "f", "bp": "e", "ts": end} | ({"pid": 0, "tid": 7} if name == "ac2g" else {})]


def test_a_step_keeps_its_calls_and_what_they_started(tmp_path: Path) -> None:
    document = tiny_trace.document()
    document["traceEvents"] += [
        *(*flow(2, 1035, 1072), *flow(6, 1105, 1115), *flow(9, 1032, 1106, "fwdbwd")),
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 100, "ts": 1106, "s": "t"},
        slice_("gpu_user_annotation", "molprof.step batch=0 step=1", 1030, 50, 0, 7),
        slice_("gpu_user_annotation", "molprof.step batch=0 step=2", 1115, 15, 0, 7),
    ]
    small = trimmed(tmp_path, document, Wish(steps=(2, 2)), "small.json.gz")
    # The kernel without a call goes by its own start.
    assert names(small, "kernel", "gpu_memcpy") == [tiny_trace.COPY, tiny_trace.CAT, "mystery"]
    assert names(small, "cuda_runtime", "cuda_driver") == ["cudaGraphLaunch", "cuLaunchKernel"]
    assert names(small, "user_annotation")[0] == "molprof.step batch=0 step=2"
    assert len(names(small, "user_annotation")) == 5
    assert names(small, "gpu_user_annotation") == ["molprof.step batch=0 step=2"]
    assert names(small, "molprof.token", "cpu_instant_event") == ["abra", "[memory]"]
    assert [(event["ph"], event["id"]) for event in small["traceEvents"] if event["ph"] in "sf"] == [("s", 6), ("f", 6)]
    # Their args hold all tokens of the run; they span the steps that are left.
    spans = [(e["name"], e["ts"], e["dur"]) for e in small["traceEvents"] if e.get("cat") == "molprof.sequence"]
    assert spans == [("sequence 0: C", 1100.0, 80.0), ("sequence 1: O", 1100.0, 80.0)]
    assert [event["ph"] for event in small["traceEvents"]].count("M") == 1
    kept, before = (next(e for e in item["traceEvents"] if e["name"] == "abra") for item in (small, document))
    assert kept == before
    manifest = small["molprof"]
    assert manifest["window"] == {"full": False, "batch": 0, "first_step": 2, "last_step": 2}
    assert (manifest["timings"]["profiled_steps_ns"], manifest["timings"]["unprofiled_steps_ns"]) == (80_000, 400)
    assert manifest["molecules"] == document["molprof"]["molecules"]
    assert small["molprof_trimmed"] == {
        "source": "trace.json", "whole_steps": True, "batch": 0, "first_step": 2, "last_step": 2, "phases": [],
        "categories": [], "without": [], "start_ns": None, "end_ns": None,
    }  # fmt: skip


def run(steps: int = 4) -> dict[str, Any]:
    """Steps whose work differs, and whose last kernel runs in the next one."""

    def per_step(start: int) -> list[dict[str, Any]]:
        found = [slice_("cpu_op", "aten::mm", start + 10, 50), slice_("python_function", "f", start + 5, 90)]
        for place in range(start // 1000):
            found += launched("kernel", f"gemm{place}", start + 20 + 5 * place, start + 990 + 3 * place, 2)
        return found

    return decoding(per_step, steps=steps, repeats=[{"steps_ns": [[900_000] * (steps + 1)]}] * 3)


def test_figures_of_the_steps_are_those_of_the_whole_trace(tmp_path: Path) -> None:
    whole = api.report(tiny_trace.write(tmp_path / "trace.json", run()))
    parts = []
    for first, last in ((1, 2), (3, 4)):
        trimmed(tmp_path, run(), Wish(steps=(first, last)), f"part{first}.json")
        parts.append(api.report(tmp_path / f"part{first}.json"))
    # These steps have no token slices, in the whole trace or in a part.
    assert [broken(found) for found in (whole, *parts)] == [["token_slices"]] * 3
    for get in (
        lambda found: found.counts.launches,
        lambda found: found.counts.kernels,
        lambda found: found.counts.kernel_time_ns,
        lambda found: found.run.window.tokens,
        lambda found: found.run.window.steps,
        lambda found: found.run.window.leaf_operators,
        lambda found: found.run.phases["forward"].gpu_ns,
        lambda found: found.run.phases["forward"].host_ns,
    ):
        assert sum(map(get, parts)) == get(whole)
    assert [part.run.launches_per_step for part in parts] == [1.5, 3.5]  # type: ignore[union-attr]
    assert parts[0].run is not None
    assert (parts[0].run.window.first_step, parts[0].run.window.last_step) == (1, 2)
    assert parts[0].run.profiled_ratio == 2_000_000 / 1_800_000
    for part in parts:  # What is of the whole run stays so.
        assert part.run is not None
        assert whole.run is not None
        assert (part.run.wall_ns, part.run.generated_tokens) == (whole.run.wall_ns, whole.run.generated_tokens)
    assert "trimmed from trace.json: steps 1 to 2 of batch 0" in parts[0].trace.remarks[0]
    assert whole.trace.remarks == ()


def test_parts_of_steps_give_no_figures_of_steps(tmp_path: Path) -> None:
    trimmed(tmp_path, run(), Wish(phases=("processor", "forward"), without=("cpu_op",)))
    found = api.report(tmp_path / "small.json")
    assert broken(found) == ["token_slices"]  # there are none in the whole trace either
    assert found.run is not None
    assert found.counts.launches == 10  # what the file holds
    assert (found.run.launches_per_step, found.run.launches_per_token, found.run.window.launches) == (None, None, None)
    assert found.run.window.leaf_operators is None
    assert {phase.launches for phase in found.run.phases.values()} == {None}
    assert found.run.phases["forward"].wall_ns == 2_400_000
    assert (found.findings, found.typical_step) == ((), None)
    assert "parts of steps were left out, so figures of steps and phases are not recorded" in " ".join(
        render(found).split()
    )
    whole = api.report(tmp_path / "trace.json")
    assert render(compare([whole, found]), "html")
    assert render(compare([found, whole]))


def test_stacks_are_in_no_figure(tmp_path: Path) -> None:
    small = trimmed(tmp_path, run(), Wish(without=("python_function",)))
    assert len(small["traceEvents"]) == len(run()["traceEvents"]) - 4
    assert api.report(tmp_path / "small.json").findings == api.report(tmp_path / "trace.json").findings
    assert small["molprof_trimmed"]["whole_steps"]


def test_phases_and_categories(tmp_path: Path) -> None:
    document = tiny_trace.document()
    document["traceEvents"] += flow(2, 1035, 1072)
    small = trimmed(tmp_path, document, Wish(steps=(1, 1), phases=("processor",)))
    assert names(small, "cuda_runtime", "cpu_op") == ["aten::index_put_", "cudaLaunchKernel"]
    assert names(small, "kernel", "gpu_memcpy") == [tiny_trace.INDEX]
    assert len(names(small, "user_annotation")) == 5  # all of the step
    small = trimmed(tmp_path, document, Wish(categories=("kernel",)))
    # molprof's own events stay; the flow has lost an end.
    counts = Counter(event.get("cat") for event in small["traceEvents"])
    assert counts == {"kernel": 6, "user_annotation": 10, "molprof.sequence": 2, "molprof.token": 3, None: 1}
    small = trimmed(tmp_path, document, Wish(categories=("kernel", "cuda_runtime")))
    assert [event["ph"] for event in small["traceEvents"] if event.get("cat") == "ac2g"] == ["s", "f"]


def test_a_stretch_of_time_of_a_trace_without_steps(tmp_path: Path) -> None:
    base = 1_752_839_462_723_407
    events = [x(str(number), f"{base + number}.125", 0.5) for number in range(5)]
    events.append({"ph": "B", "cat": "cpu_op", "name": "b", "pid": 1, "tid": 3, "ts": base + 2})
    small = trimmed(tmp_path, events, Wish(start_ns=2125, end_ns=4125))
    # Whole numbers of ns from the earliest event, which is at .125.
    assert ([event["name"] for event in small["traceEvents"]], "molprof" in small) == (["3", "4", "b"], False)
    (remark,) = api.report(tmp_path / "small.json").trace.remarks
    assert remark.endswith("; parts of steps were left out, so that their figures are not recorded")
    with pytest.raises(UsageError, match="has no annotated steps"):
        trimmed(tmp_path, events, Wish(steps=(0, 1)))


def test_keys_are_kept_and_trimming_again_remembers(tmp_path: Path) -> None:
    document = {"schemaVersion": 1, **run(), "deviceProperties": [{"name": "T4"}], "big": 10**30, "x": 1.5}
    tiny_trace.write(tmp_path / "trace.json", {**document, "traceName": "old"})
    for name in ("one.json", "again.json"):
        trim(tmp_path / "trace.json", tmp_path / name, Wish(start_ns=0, end_ns=2_000_000))
    first, again = ((tmp_path / name).read_bytes() for name in ("one.json", "again.json"))
    assert first == again.replace(b"again.json", b"one.json")
    trim(tmp_path / "one.json", tmp_path / "two.json", Wish(steps=(1, 1)))
    small = json.loads((tmp_path / "two.json").read_text())
    assert (small["schemaVersion"], small["deviceProperties"], small["x"]) == (1, [{"name": "T4"}], 1.5)
    assert small["traceName"] == "two.json"
    assert (small["molprof_trimmed"]["source"], small["molprof_trimmed"]["whole_steps"]) == ("one.json", False)
    assert not api.report(tmp_path / "two.json").trace.whole_steps


def test_what_cannot_be_trimmed(tmp_path: Path) -> None:
    """No file is written, and nothing is advised that trim cannot do."""
    output = tmp_path / "small.json"
    source = tiny_trace.write(tmp_path / "trace.json.gz", tiny_trace.document())
    source.write_bytes(source.read_bytes()[:-40])
    with pytest.raises(TraceError, match="gzip data is truncated at byte") as error:
        trim(source, output, Wish(steps=(1, 1)))
    assert error.value.hint == "copy or record the file again: only whole traces are trimmed"
    content = tiny_trace.document()
    content["molprof"]["molecules"] = "none"
    tiny_trace.write(tmp_path / "trace.json", content)
    with pytest.raises(TraceError, match=r"trace.json: manifest: molecules: expected `array`, got `str`") as error:
        trim(tmp_path / "trace.json", output, Wish(steps=(1, 1)))
    assert error.value.hint == MANIFEST_HINT
    assert not output.exists()
    tiny_trace.write(output, {**tiny_trace.document(), "molprof_trimmed": {"source": 3}})
    with pytest.raises(TraceError, match=r"molprof_trimmed: source: expected `str`, got `int`"):
        api.report(output)


@needs_traces
def test_halves_of_a_public_trace_add_up(tmp_path: Path) -> None:
    source = Path(str(CORPUS), "traces/h100_qwen1.5_0.5b.json.gz")
    whole = api.report(source)
    halves = []
    for name, wish in (("a.json.gz", Wish(end_ns=30_000_000)), ("b.json.gz", Wish(start_ns=30_000_000))):
        trim(source, tmp_path / name, wish)
        halves.append(api.report(tmp_path / name))
    counts = Counter[str]()
    for half in halves:
        counts.update(half.trace.events_by_category)
        assert half.counts.launches > 0
        assert broken(half) == []
    expected = Counter(whole.trace.events_by_category)
    del expected["gpu_user_annotation"], counts["gpu_user_annotation"]  # one that spans the cut is in neither
    assert counts == expected
    assert sum(half.counts.launches for half in halves) == whole.counts.launches
    assert sum(half.counts.kernels_with_call for half in halves) == whole.counts.kernels_with_call


def test_the_command_says_what_it_did(molprof: Cli, tmp_path: Path) -> None:
    tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    result = molprof("trim", "trace.json", "--steps", "2", "-o", "small.json.gz")
    assert (result.returncode, result.stdout) == (0, "")
    size_kb = (tmp_path / "small.json.gz").stat().st_size / 1e3
    assert result.stderr == f"wrote small.json.gz: 13 of 34 events, {size_kb:.2f} kB\n"
