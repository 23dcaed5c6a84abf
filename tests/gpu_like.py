"""A capture as a GPU would have written it, made from one of a CPU, and every figure that it must show.

No figure of it was measured. Its manifest names the GPU `simulated GPU (no device)`, and pages refuse it as evidence.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from gpu_clock import Clock, Node, Place, Work, tree
from gpu_expected import Expected
from msgspec.structs import replace

from molprof import api
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Finding
from molprof.common.files import replacing
from molprof.common.manifest import KEY, SCHEMA, STEP_PHASES, Manifest, Repeat, from_json

TRACES = Path(__file__).parent.parent / "traces"
GPU = "simulated GPU (no device)"
NOTE = "made by tests/gpu_like.py for rehearsals: no figure of it was measured"
_STEP = re.compile(r"molprof\.step batch=(?P<batch>\d+) step=(?P<step>\d+)")
HOST = ("user_annotation", "cpu_op")
# Of the recorded steps, so many of the first are simulated.
STEPS = 8
# Unprofiled host time over profiled.
UNPROFILED = 0.8
COMPILE_NS = 31_000_000_000


@dataclass(frozen=True, repr=False)
class Simulated:
    """A simulated capture and its report."""

    expected: Expected
    report: Report

    @property
    def findings(self) -> dict[str, Finding]:
        return {finding.id: finding for finding in self.report.findings}


def simulations(folder: Path) -> Callable[..., Simulated]:
    """What makes and reads a simulation in `folder` once: `(source, **options)`, of the capture traces/cpu-SOURCE."""
    numbers = count()

    @functools.cache
    def simulated(source: str, **options: Any) -> Simulated:
        path = folder / f"{next(numbers)}-{source}.json.gz"
        return Simulated(simulate(TRACES / f"cpu-{source}.json.gz", path, **options), api.report(path))

    return simulated


def simulate(
    source: Path,
    output: Path,
    streams: int = 1,
    graph: bool = False,
    masked: bool = False,
    processor_operators: tuple[str, ...] = (),
    **settings: Any,
) -> Expected:
    """Writes the capture `source` to `output` as if it ran on a GPU: all of it, or the first STEPS of a window.

    `streams=2` puts copies on a stream of their own, `graph` runs each forward as one CUDA graph, `masked` uses the
    efficient attention kernel, `processor_operators` are more operators of the processor in every step. `settings` are
    changes of the manifest's settings.
    """
    keys, all_events, manifest = _read(source)
    document, events = dict(keys), [dict(event) for event in all_events]
    host = [event for event in events if event.get("cat") in HOST]
    base_ns = round(min(event["ts"] for event in events if "ts" in event) * 1000)
    clock = Clock(streams, graph, processor_operators)
    clock.now = 10_000
    roots = tree(host, f"aten::_scaled_dot_product_{'efficient' if masked else 'flash'}_attention")
    for root in roots:
        clock.run(root, Place(None, None))
    nodes = [node for root in roots for node in root.within()]
    phases = [(place, node.ts, node.dur) for node in nodes if (place := _phase(node)) is not None]
    steps = {
        (int(found["batch"]), int(found["step"])): (node.ts, node.dur)
        for node in nodes
        if (found := _STEP.fullmatch(node.name)) is not None
    }
    events = [event for event in events if event.get("cat") != "molprof.token" or _step(event) in steps]
    tokens = sum(event.get("cat") == "molprof.token" for event in events)
    expected = Expected(output, tokens, clock.calls, clock.works, phases, steps)
    if graph:
        settings = {"kv_cache": "static", "compile": "default", **settings}
    document |= {
        "deviceProperties": [
            {"id": 0, "name": GPU, "totalGlobalMem": 80_000_000_000, "computeMajor": 9, "numSms": 132}
        ],
        "cuda_runtime_version": 12080,
        "traceName": output.name,
        "simulated": NOTE,
        KEY: _manifest(manifest, expected, graph, settings).to_json(),
    }
    made = [*_host_events(nodes), *_gpu_events(clock, host[0]), *_tokens(events, expected)]
    for event in made:
        for name, base in (("ts", base_ns), ("dur", 0)):
            if name in event:
                event[name] = (base + event[name]) / 1000
    kept = [event for event in events if event["ph"] in ("M", "i") or event.get("cat") == "Trace"]
    for event in kept:  # else the events of the CPU's own clock would end long after all others
        event["ts"] = base_ns / 1000
        if "dur" in event:
            event["dur"] = (clock.now + 20_000) / 1000
    document["traceEvents"] = [*kept, *made]
    text = json.dumps(document).encode()
    with replacing(output) as part:
        part.write_bytes(gzip.compress(text, 6, mtime=0) if output.suffix == ".gz" else text)
    return expected


@functools.cache
def _read(source: Path) -> tuple[dict[str, Any], list[dict[str, Any]], Manifest]:
    """The other keys of a capture, its events and its manifest, without the steps that are not simulated."""
    document = json.loads(gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes())
    events = document.pop("traceEvents")
    manifest = from_json(document[KEY])
    window = manifest.window
    if not window.full:
        manifest = replace(manifest, window=replace(window, last_step=window.first_step + STEPS - 1))
        last = f"molprof.step batch={window.batch} step={manifest.window.last_step}"
        (end,) = (event["ts"] + event["dur"] for event in events if event["name"] == last)
        events = [event for event in events if event.get("cat") not in HOST or event["ts"] < end]
    return document, events, manifest


def _step(token: dict[str, Any]) -> tuple[int, int]:
    return token["args"]["batch"], token["args"]["step"]


def _phase(node: Node) -> Place | None:
    if not node.annotation or not node.name.startswith("molprof.") or node.name.startswith("molprof.step "):
        return None
    phase, *pairs = node.name.removeprefix("molprof.").split()
    return Place(None, node, phase, **{key: int(value) for key, value in (pair.split("=") for pair in pairs)})


def _host_events(nodes: list[Node]) -> Iterator[dict[str, Any]]:
    for node in nodes:
        yield {**{key: value for key, value in node.event.items() if key != "kernels"}, "ts": node.ts, "dur": node.dur}


def _gpu_events(clock: Clock, host: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Calls, GPU work, flows, annotations as torch mirrors them on the streams, names of process and streams."""
    thread = {"pid": host["pid"], "tid": host["tid"]}
    started = {work.call.correlation for work in clock.works}
    for call in clock.calls:
        ids = {} if call.place.operator is None else {"External id": call.place.operator.event["args"]["External id"]}
        args = {**ids, "cbid": 211, "correlation": call.correlation}
        yield {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": call.name,
            **thread,
            "ts": call.ts,
            "dur": call.dur,
            "args": args,
        }
        if call.correlation in started:
            yield {"ph": "s", "id": call.correlation, **thread, "ts": call.ts, "cat": "ac2g", "name": "ac2g"}
    spans: dict[tuple[int, int], list[Work]] = defaultdict(list)
    for work in clock.works:
        place = {"pid": 0, "tid": work.stream, "ts": work.ts}
        yield {"ph": "X", "cat": work.category, "name": work.name, **place, "dur": work.dur, "args": _work_args(work)}
        yield {"ph": "f", "id": work.call.correlation, **place, "cat": "ac2g", "name": "ac2g", "bp": "e"}
        if work.call.place.annotation is not None:  # the innermost alone, as CUPTI reports it
            spans[id(work.call.place.annotation), work.stream].append(work)
    for (_, stream), works in spans.items():
        node = works[0].call.place.annotation
        assert node is not None
        ts, end = works[0].ts, works[-1].ts + works[-1].dur
        args = {"External id": node.event["args"]["External id"]}
        place = {"pid": 0, "tid": stream, "ts": ts, "dur": end - ts}
        yield {"ph": "X", "cat": "gpu_user_annotation", "name": node.name, **place, "args": args}
    names = [("process_name", 0, {"name": "python"}), ("process_labels", 0, {"labels": "GPU 0"})]
    names.append(("process_sort_index", 0, {"sort_index": 5_000_000}))
    for stream in sorted({work.stream for work in clock.works}):
        names += [
            ("thread_name", stream, {"name": f"stream {stream} "}),
            ("thread_sort_index", stream, {"sort_index": stream}),
        ]
    for name, tid, args in names:
        yield {"name": name, "ph": "M", "ts": 0, "pid": 0, "tid": tid, "args": args}


def _work_args(work: Work) -> dict[str, Any]:
    operator = work.call.place.operator
    args: dict[str, Any] = {} if operator is None else {"External id": operator.event["args"]["External id"]}
    args |= {"device": 0, "context": 1, "stream": work.stream, "correlation": work.call.correlation}
    if work.bytes is not None:
        return args | {"bytes": work.bytes, "memory bandwidth (GB/s)": work.bytes / work.dur}
    args |= {"queued": 0, "registers per thread": 32, "shared memory": 0, "grid": [64, 1, 1], "block": [128, 1, 1]}
    return args if work.graph_node is None else args | {"graph id": 2, "graph node id": 8_589_934_592 + work.graph_node}


def _tokens(events: list[dict[str, Any]], expected: Expected) -> Iterator[dict[str, Any]]:
    """Token slices at the new times of their steps."""
    shares: dict[tuple[int, int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "molprof.token":
            args = event["args"]
            shares[args["sequence"], args["batch"], args["step"]].append(event)
        elif event.get("cat") == "molprof.sequence":
            spans = [span for (batch, _), span in expected.steps.items() if batch == event["args"]["batch"]]
            # The tokens of a batch of which no step was recorded stand at the start.
            ts, (last, dur) = min(spans or [(0, 0)])[0], max(spans or [(0, 0)])
            yield {**event, "ts": ts, "dur": last + dur - ts}
    for (_, *step), tokens in shares.items():
        ts, dur = expected.steps[step[0], step[1]]
        edges = [ts + dur * number // len(tokens) for number in range(len(tokens) + 1)]
        for event, (begin, end) in zip(tokens, pairwise(edges), strict=True):
            yield {**event, "ts": begin, "dur": end - begin}


def _manifest(manifest: Manifest, expected: Expected, graph: bool, settings: dict[str, Any]) -> Manifest:
    """The manifest of a run on the simulated device, with timed passes that follow from the recorded steps."""
    environment = replace(
        manifest.environment, gpu=GPU, gpu_memory_bytes=80_000_000_000, driver="simulated", cuda="12.8", cudnn="91002"
    )
    resolved = replace(manifest.resolved, device="cuda:0", dtype="bfloat16")
    if settings.get("processor"):
        resolved = replace(resolved, processor=settings["processor"])
    passes = len(manifest.timings.repeats)
    repeats = [_repeat(manifest, expected, 1 + 0.004 * (number - (passes - 1) / 2)) for number in range(passes)]
    profiled_ns = sum(dur for _, dur in expected.steps.values())
    compile_ns = COMPILE_NS if graph else 0
    timings = replace(
        manifest.timings, repeats=repeats, warmup_ns=[repeats[0].wall_ns + compile_ns],
        warmup_compiles=[6 if graph else 0], warmup_compile_ns=[compile_ns], unmarked_wall_ns=None,
        profiled_steps_ns=profiled_ns, unprofiled_steps_ns=int(profiled_ns * UNPROFILED),
    )  # fmt: skip
    changed = dataclasses.replace(manifest.settings, device="cuda:0", **settings)
    return replace(
        manifest, schema=SCHEMA, environment=environment, settings=changed, resolved=resolved, timings=timings
    )


def _repeat(manifest: Manifest, expected: Expected, factor: float) -> Repeat:
    per_step = {
        phase: int(expected.host_ns(phase) / len(expected.steps) * UNPROFILED * factor) for phase in STEP_PHASES
    }
    decode = sum(per_step.values())
    prefill = 3 * per_step["forward"]
    steps = [[decode - per_step["forward"] + prefill, *[decode] * (count - 1)] for count in manifest.steps_per_batch]
    batches, count = len(steps), sum(manifest.steps_per_batch)
    known = manifest.timings.repeats[0].phases_ns
    phases = {phase: int(ns * factor) for phase, ns in known.items() if phase not in (*STEP_PHASES, "prefill")}
    phases |= {phase: ns * (count - batches if phase == "forward" else count) for phase, ns in per_step.items()}
    phases["prefill"] = batches * prefill
    return Repeat(sum(phases.values()) * 1001 // 1000, phases, steps, 0, 0)
