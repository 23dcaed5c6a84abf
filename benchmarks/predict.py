"""Learns from recorded GPU traces what `molprof predict` knows, and checks it on models whose traces are left out.

    python benchmarks/predict.py record FOLDER/runs     # models from their configurations, random weights, on this CPU
    python benchmarks/predict.py learn FOLDER           # writes analysis/predict/table.json, prints the table of errors
    python benchmarks/predict.py history FOLDER         # both presets at full size, on an A100 and an H100

FOLDER/traces has traces of torch.profiler with shapes, of one GPU each, and FOLDER/runs those of a CPU. A file is named
after its model: MODEL--ANYTHING.json.gz. What is shown of a model is checked with none of its traces in the table.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import json

from molprof import api
from molprof.analysis.critical.recorded import read_recorded
from molprof.analysis.frame import Frame, read_frame
from molprof.analysis.predict.predict import (
    BUSY_FIGURE,
    COPY_FIGURE,
    GPU_FIGURE,
    LAUNCH_FIGURE,
    LENGTH_FIGURE,
    LIMIT_FIGURE,
    SYNC_FIGURE,
    PredictedFigure,
    limit_of,
    predict,
)
from molprof.analysis.predict.run import (
    SYNCS,
    CallSequence,
    OperatorCall,
    attention_on,
    call_of,
    quiet_of_operators,
    read_run,
    split,
    torch_of,
)
from molprof.analysis.predict.table import CostRow, CostTable, HeldOutCheck, Stored, TraceCosts, launching_of, quiet_of
from molprof.analysis.reader import TraceInfo
from molprof.analysis.roofline.operands import read_operands
from molprof.analysis.roofline.peaks import peaks_of
from molprof.analysis.roofline.read import HOST_COPY, listed_bytes
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.union import Union
from molprof.common.errors import MolprofError

TABLE = Path(__file__).parent.parent / "analysis" / "predict" / "table.json"
_ATEN = "aten::"
_USUAL = 0.99
Figures = dict[str, float]


# What a trace shows


def owners(engine: TraceProcessor) -> set[str]:
    """Names of torch's operators that start GPU work themselves."""
    operators, work = read_frame(engine, "operators", "id name"), read_frame(engine, "work", "operator_id")
    names = dict(zip(operators["id"].tolist(), operators["name"].tolist(), strict=True))
    found = {names[item] for item in work["operator_id"].tolist() if item is not None}
    return {name for name in found if name.startswith(_ATEN)}


def read_source(engine: TraceProcessor, info: TraceInfo, model: str, launching: set[str]) -> TraceCosts:
    """Return what a trace with shapes shows. launching: operators that are GPU work, of all traces."""
    operators, work, calls = (read_frame(engine, name) for name in ("operators", "work", "calls"))
    chosen, inside = split(operators, launching)
    callers = dict(zip(operators["id"].tolist(), operators["caller_id"].tolist(), strict=True))
    top: dict[int, int] = {}
    for item in chosen:
        top[item] = item
    for item in inside:  # callers come first
        top[item] = top[callers[item]]
    done: defaultdict[int, list[tuple[str, str, int]]] = defaultdict(list)
    across = set()
    each = zip(*(work[name].tolist() for name in ("operator_id", "category", "class", "name", "dur")), strict=True)
    for item, category, kind, name, dur in each:
        if item in top:
            done[top[item]].append((category, kind or category, dur))
            if category != "kernel" and HOST_COPY.search(name):
                across.add(top[item])
    waited: Counter[int] = Counter()
    for item, is_sync, dur in zip(*(calls[name].tolist() for name in ("operator_id", "is_sync", "dur")), strict=True):
        if item in top and is_sync:
            waited[top[item]] += dur
    peaks = peaks_of(str(info.devices[0]["name"]))
    operands = read_operands(engine, chosen)
    sizes = listed_bytes(work)
    each = zip(*(operators[name].tolist() for name in ("id", "name", "ts", "dur")), strict=True)
    by_id = {item: about for item, *about in each}
    groups: defaultdict[tuple[object, ...], list[tuple[int, float, float, str]]] = defaultdict(list)
    for item in chosen:
        pieces = done.get(item)
        if not pieces or (item in across and by_id[item][0] not in SYNCS):
            continue  # of tensors on the host, which a run without a GPU does not copy
        call = call_of(item, *by_id[item], operands.get(item, ()), sizes.get(item))
        call = call._replace(operator=attention_on(call.operator, peaks, torch_of(info)))
        kernels = sum(category == "kernel" for category, _, _ in pieces)
        gpu_ns = sum(dur for _, _, dur in pieces)
        kind = max(pieces, key=lambda piece: piece[2])[1]
        groups[_key(call)].append((kernels, gpu_ns, by_id[item][2] - waited[item], kind))
    rows = [_row(key, found) for key, found in groups.items()]
    recorded = read_recorded(engine, info)
    quiet = quiet_of_operators(operators, {*chosen, *inside}).medians()
    return TraceCosts(
        model,
        str(info.devices[0]["name"]),
        recorded.latency_ns,
        recorded.pause_ns,
        _gap_ns(operators.where(~operators.known("caller_id")), calls),
        {name: time for name, time in sorted(quiet.items()) if name.startswith(_ATEN)},
        sorted(rows, key=lambda row: (row.operator, row.flops, row.bytes)),
    )


def _gap_ns(outermost: Frame, calls: Frame) -> float:
    """Mean host time between operators that no other calls, without runtime calls; the longest 1 % left out."""
    inside = Union(
        np.concatenate([outermost["ts"], calls["ts"]]),
        np.concatenate([frame["ts"] + frame["dur"] for frame in (outermost, calls)]),
    )
    starts = outermost["ts"]
    gaps = np.diff(starts) - inside.covered(starts[:-1], starts[1:])
    return float(gaps[gaps <= np.quantile(gaps, _USUAL)].mean())


def _key(call: OperatorCall) -> tuple[object, ...]:
    work = call.work
    if work is None:
        return call.operator, None, "", 0, 0
    return call.operator, work.family, work.kind, work.flops or 0, work.bytes


def _row(key: tuple[object, ...], found: list[tuple[int, float, float, str]]) -> CostRow:
    kernels, gpu_ns, host_ns, kinds = zip(*found, strict=True)
    operator, *rest = key
    return CostRow(
        operator,
        Counter(kinds).most_common(1)[0][0],
        *rest,
        round(float(np.mean(kernels)), 2),
        float(np.median(gpu_ns)),
        float(np.median(host_ns)),
        len(found),
    )


# Errors


def recorded_figures(engine: TraceProcessor, info: TraceInfo, of_steps: bool) -> Figures:
    """Of the kernels that operators of the trace started. The time begins when the GPU is done with what came before.

    of_steps: of whole steps, else from the first operator that starts a kernel.
    """
    work, recorded, operators = read_frame(engine, "work"), read_recorded(engine, info), read_frame(engine, "operators")
    own = work.known("operator_id") & (work["category"] != "gpu_memcpy")
    ends = work["ts"] + work["dur"]
    rows = dict(zip(operators["id"].tolist(), operators["ts"].tolist(), strict=True))
    begun = min(rows[item] for item in work["operator_id"][own].tolist())
    start = max(
        recorded.start_ns if of_steps else begun,
        int(ends[~work.known("operator_id") & (work["ts"] < work["ts"][own].min())].max(initial=0)),
    )
    end = recorded.end_ns if of_steps else int(ends[own].max())
    busy = Union(work["ts"], ends).covered(start, end)
    gpu_ns = float(work["dur"][own].sum())
    syncs, calls = read_frame(engine, "syncs"), read_frame(engine, "calls")
    since = recorded.start_ns if of_steps else begun
    copied = work.known("operator_id") & (work["category"] == "gpu_memcpy") & (work["ts"] >= since)
    halted = (calls.known("operator_id") | of_steps) & calls["is_sync"].astype(bool) & (calls["ts"] >= since)
    waited = Union(syncs["ts"], syncs["ts"] + syncs["dur"])
    last = max(recorded.ends_ns.values()) if of_steps else int((operators["ts"] + operators["dur"]).max())
    host_ns = float(last - since - waited.covered(since, last))
    return {
        LAUNCH_FIGURE: float((own & (work["category"] == "kernel")).sum()),
        COPY_FIGURE: float(copied.sum()),
        SYNC_FIGURE: float(halted.sum()),
        GPU_FIGURE: gpu_ns,
        LENGTH_FIGURE: float(end - start),
        BUSY_FIGURE: float(busy / (end - start)),
        LIMIT_FIGURE: float(limit_of(gpu_ns, host_ns) == "GPU"),
    }


def checks_of(
    model: str,
    run: CallSequence,
    origin: str,
    recorded: Sequence[tuple[str, Figures, Figures]],
    sources: list[TraceCosts],
) -> Iterator[HeldOutCheck]:
    """Yield a run predicted for each GPU that has a trace of the model, with and without others of that GPU."""
    others = [source for source in sources if source.model != model]
    for device, of_steps, of_forward in recorded:
        peaks = peaks_of(device)
        for shown in (True, False):
            kept = [source for source in others if shown or peaks_of(source.device).source != peaks.source]
            table = CostTable(kept, peaks)
            if table.shown != shown or origin == device:
                continue
            try:
                found = predict(run, table, ())
            except MolprofError as error:
                print(f"{model} on {device} ({origin}): {error}", file=sys.stderr)
                continue
            each = {
                LAUNCH_FIGURE: found.launches.value,
                COPY_FIGURE: found.copies.value,
                SYNC_FIGURE: found.syncs.value,
                GPU_FIGURE: found.gpu_ns.value,
                LENGTH_FIGURE: found.length_ns.value,
                BUSY_FIGURE: found.busy_ratio.value,
                LIMIT_FIGURE: float(found.limit == "GPU"),
            }
            figures = of_steps if run.on_gpu or run.phases else of_forward
            for name, value in each.items():
                yield HeldOutCheck(
                    model, origin, device, name, float(f"{value:.5g}"), float(f"{figures[name]:.5g}"), shown
                )


def learn(folder: Path) -> None:
    traces = sorted((folder / "traces").iterdir())
    each = [(path.name.partition("--")[0], api.load(path, cached=False)) for path in traces]
    how: dict[str, Any] = {"stacks": True, "all_args": True}
    launching: set[str] = set().union(*(trace.read(lambda engine, _: owners(engine), **how) for _, trace in each))
    sources, recorded, runs = [], {}, []
    for model, trace in each:
        source = trace.read(lambda engine, info, model=model: read_source(engine, info, model, launching), **how)
        sources.append(source)
        both = trace.read(
            lambda engine, info: [recorded_figures(engine, info, steps) for steps in (True, False)], **how
        )
        recorded.setdefault(model, []).append((source.device, *both))
    launching, quiet = launching_of(sources), quiet_of(sources)
    for model, trace in each:
        run = trace.read(lambda engine, info: read_run(engine, info, launching, quiet), **how)
        runs.append((model, run, str(run.info.devices[0]["name"])))
    for path in sorted((folder / "runs").iterdir()):
        with api.load(path, cached=False) as trace:
            run = trace.read(lambda engine, info: read_run(engine, info, launching, quiet), **how)
            runs.append((path.name.partition("--")[0], run, "CPU"))
    checks = [check for model, run, origin in runs for check in checks_of(model, run, origin, recorded[model], sources)]
    text = json.encode(Stored(sources, checks))
    # A line for each row and check, for who reads a difference.
    TABLE.write_bytes(text.replace(b',["aten', b',\n["aten').replace(b'{"model"', b'\n{"model"') + b"\n")
    show(checks)


def show(checks: Sequence[HeldOutCheck]) -> None:
    """Print the errors as the table of the docs."""
    print("| run of | recorded on | GPU | launches | GPU time | busy share | limited by |\n|" + " --- |" * 7)
    keys = dict.fromkeys((check.model, check.origin, check.device, check.shown) for check in checks)
    for key in sorted(keys, key=lambda key: (not key[3], key[1] != "CPU", key)):
        of = {c.figure: c for c in checks if (c.model, c.origin, c.device, c.shown) == key}
        one = [
            f"{of[name].predicted / of[name].recorded - 1:+.0%} of {of[name].recorded / scale:,.4g}{unit}"
            for name, scale, unit in ((LAUNCH_FIGURE, 1, ""), (GPU_FIGURE, 1e6, " ms"))
        ]
        busy = of[BUSY_FIGURE]
        limits = ["GPU" if value else "host" for value in (of[LIMIT_FIGURE].predicted, of[LIMIT_FIGURE].recorded)]
        limit = limits[0] if limits[0] == limits[1] else f"{limits[0]}, recorded {limits[1]}"
        shown = "" if key[3] else ", no trace of it"
        shares = f"{busy.predicted:.0%}, recorded {busy.recorded:.0%}"
        print(f"| {key[0]} | {key[1]} | {key[2]}{shown} | {' | '.join(one)} | {shares} | {limit} |")


def record(folder: Path) -> None:
    """Forward passes, batch and shapes as in the public traces; the large ones on torch's meta device."""
    import torch
    import transformers
    from torch.profiler import ProfilerActivity, profile

    def ids(*shape: int) -> dict[str, Any]:
        return {"input_ids": torch.ones(shape, dtype=torch.long)}

    def pixels(*shape: int) -> dict[str, Any]:
        return {"pixel_values": torch.zeros(shape)}

    qwen = transformers.Qwen2Config(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=16
    )
    bert = transformers.BertConfig(hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8)
    models = {
        "Qwen1.5-0.5B": ("meta", transformers.AutoModelForCausalLM, qwen, lambda: ids(16, 559)),
        "bert-small": ("cpu", transformers.AutoModelForMaskedLM, bert, lambda: ids(1, 141)),
        "ViT-base": (
            "cpu", transformers.AutoModelForImageClassification, transformers.ViTConfig(),
            lambda: pixels(4, 3, 224, 224),
        ),
        "TimeSformer": (
            "meta", transformers.AutoModelForVideoClassification, transformers.TimesformerConfig(num_labels=400),
            lambda: pixels(1, 128, 3, 224, 224),
        ),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.bfloat16)
    for name, (device, kind, config, made) in models.items():
        with torch.device(device), torch.inference_mode():
            model, inputs = kind.from_config(config).eval(), made()
            for _ in range(3):
                model(**inputs)
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
                model(**inputs)
        profiler.export_chrome_trace(str(folder / f"{name}--{device}.json.gz"))
        print(name, flush=True)


# Both presets at full size on GPUs that are not here


def history(folder: Path) -> None:
    """Print the table of the case study. Runs that the folder lacks are captured on this CPU, in 10 minutes."""
    processors = ("none", "generic", "vectorized", "grammar")
    print("| run | GPU | launches | GPU time | time | in graphs | compiled, in graphs |\n|" + " --- |" * 7)
    for model, size in (("llama", "380m"), ("qwen", "0.6b")):
        runs = folder / f"full-{model}"
        if not runs.exists():
            line = f"capture --model {model} --size {size} --dtype bfloat16 -n 32 --max-new-tokens 24 --repeats 1"
            line += f" --warmup 0 --window 20:21 --shapes --threads 1 --processor {','.join(processors)} -o {runs}"
            subprocess.run([sys.executable, "-m", "molprof", *line.split()], check=True)
        for processor in processors:
            name = model if processor == "none" else f"{model}-{processor}"
            for device in ("A100", "H100"):
                found = api.predict(runs / f"{name}.json.gz", device)
                assert found.compiled is not None
                times = (found.gpu_ns, found.length_ns, found.graph_ns, found.compiled.length_ns)
                each = [_of_step(figure, found.run.steps) for figure in times]
                launches = f"{found.launches.value / found.run.steps:,.0f}"
                print(f"| `{name}` | {device} | {' | '.join([launches, *each])} |")


def _of_step(figure: PredictedFigure, steps: int) -> str:
    value, low, high = (f"{part / steps / 1e6:.3g}" for part in figure)
    return f"{value} ms ({low} to {high})"


if __name__ == "__main__":
    {"record": record, "learn": learn, "history": history}[sys.argv[1]](Path(sys.argv[2]))
