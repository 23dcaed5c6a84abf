"""A tiny captured run, written out: 2 sequences, 3 steps, of which the last two are recorded.

Times in µs. The GPU runs behind the CPU: kernel 2, launched by the forward phase, runs in the processor's.
"""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from molprof import api
from molprof.analysis.figures import Report

HOST, GPU, TOKENS = 100, 0, 900
_reports: dict[tuple[str, str], Report] = {}


def slice_(
    category: str, name: str, ts: float, dur: float, pid: int | str = HOST, tid: int = 100, **args: Any
) -> dict[str, Any]:
    """One complete event."""
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def work(
    category: str, name: str, ts: float, dur: float, correlation: int, tid: int = 7, **args: Any
) -> dict[str, Any]:
    """One piece of GPU work on device 0."""
    return slice_(category, name, ts, dur, GPU, tid, device=0, stream=tid, correlation=correlation, **args)


def memory_event(
    size: float, ts: float, address: float, total: float, reserved: float = 0, *, on_host: bool = False
) -> dict[str, Any]:
    """Bytes that torch allocates, or frees below 0, and what it has allocated and reserved then."""
    args = {"Bytes": int(size), "Addr": int(address), "Total Allocated": int(total), "Total Reserved": int(reserved)}
    place = {"Device Type": 0, "Device Id": -1} if on_host else {"Device Type": 1, "Device Id": 0}
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": HOST, "tid": HOST, "ts": ts}
    return {**event, "args": args | place}


INDEX = "void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel<long>(int)>(int)"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(int)>(int)"
CAT = "void at::native::CatArrayBatchedCopy<float, unsigned int, 4>(float*)"

EVENTS = [
    slice_("user_annotation", "molprof.step batch=0 step=1", 1000, 100),
    slice_("user_annotation", "molprof.forward batch=0 step=1", 1000, 60),
    slice_("cpu_op", "aten::mm", 1005, 20),
    slice_("cuda_runtime", "cudaLaunchKernel", 1010, 5, correlation=1),
    slice_("cpu_op", "aten::linear", 1030, 20),
    slice_("cpu_op", "aten::addmm", 1032, 10),
    slice_("cuda_runtime", "cudaLaunchKernelExC", 1035, 4, correlation=2),
    slice_("user_annotation", "molprof.processor batch=0 step=1", 1060, 20),
    slice_("cpu_op", "aten::index_put_", 1062, 10),
    slice_("cuda_runtime", "cudaLaunchKernel", 1064, 3, correlation=3),
    slice_("user_annotation", "molprof.sampling batch=0 step=1", 1080, 15),
    slice_("cpu_op", "aten::_local_scalar_dense", 1080.5, 12),
    slice_("cuda_runtime", "cudaMemcpyAsync", 1081, 2, correlation=4),
    slice_("cuda_runtime", "cudaStreamSynchronize", 1084, 6, correlation=5),
    slice_("user_annotation", "molprof.bookkeeping batch=0 step=1", 1095, 5),
    slice_("user_annotation", "molprof.step batch=0 step=2", 1100, 80),
    slice_("user_annotation", "molprof.forward batch=0 step=2", 1100, 50),
    slice_("cuda_runtime", "cudaGraphLaunch", 1105, 5, correlation=6),
    slice_("user_annotation", "molprof.processor batch=0 step=2", 1150, 10),
    slice_("user_annotation", "molprof.sampling batch=0 step=2", 1160, 15),
    slice_("user_annotation", "molprof.bookkeeping batch=0 step=2", 1175, 5),
    slice_("cuda_driver", "cuLaunchKernel", 1176, 1, correlation=7),
    work("kernel", "sm90_xmma_gemm_bf16", 1030, 40, 1),
    work("kernel", "fmha_cutlassF_bf16", 1072, 8, 2),
    work("kernel", INDEX, 1085, 2, 3),
    work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1088, 1, 4, bytes=16),
    work("kernel", COPY, 1115, 10, 6),
    work("kernel", CAT, 1120, 10, 6, tid=8),
    work("kernel", "mystery", 1178, 1, 99),
    {"ph": "M", "name": "process_name", "pid": TOKENS, "tid": 0, "args": {"name": "molprof tokens"}},
    slice_(
        "molprof.sequence", "sequence 0: C", 1000, 180, TOKENS, 1, sequence=0, batch=0, row=0, smiles="C",
        tokens=3, token_id=[5, 6, 7], text=["[C]<", "1.0,2.0,3.0", "abra"], kind=["copy", "free", "junk"],
        block=[-1, 0, 0],
    ),
    slice_(
        "molprof.sequence", "sequence 1: O", 1000, 180, TOKENS, 2, sequence=1, batch=0, row=1, smiles="O",
        tokens=2, token_id=[8, 9], text=["[O]", "</s>"], kind=["copy", "eos"], block=[-1, -1],
    ),
    slice_("molprof.token", "1.0,2.0,3.0", 1000, 100, TOKENS, 1, sequence=0, batch=0, step=1, position=1,
           token_id=6, kind="free", block=0),
    slice_("molprof.token", "abra", 1100, 80, TOKENS, 1, sequence=0, batch=0, step=2, position=2,
           token_id=7, kind="junk", block=0),
    slice_("molprof.token", "eos", 1000, 100, TOKENS, 2, sequence=1, batch=0, step=1, position=1,
           token_id=9, kind="eos", block=-1),
]  # fmt: skip


def repeat(wall_ns: int, forward_ns: int) -> dict[str, Any]:
    """A timed pass: 95 ns of it outside `forward`, 5 ns in no phase."""
    phases = {"template": 10, "tokenize": 5, "prefill": 30, "forward": forward_ns, "processor": 20, "sampling": 15}
    return {"wall_ns": wall_ns, "phases_ns": {**phases, "bookkeeping": 10}, "steps_ns": [[30, 500, 400]]}


MANIFEST: dict[str, Any] = {
    "schema": 1,
    "created": "2025-01-01T00:00:00Z",
    "command": ["molprof", "capture"],
    "environment": {
        "gpu": "Test GPU", "gpu_memory_bytes": 1, "driver": None, "cuda": None, "cudnn": None, "torch": "2.0",
        "transformers": "5.0", "flash_attn": None, "molprof": "0.1", "python": "3.11", "platform": "Linux",
        "cpu": "x", "cores": 2, "threads": 2,
    },
    "model": {
        "name": "llama", "family": "llama", "parameters": 1_600_000, "layers": 4, "hidden": 192, "heads": 4,
        "kv_heads": 2, "logits_width": 128_256, "tokenizer": "llama3", "vocabulary": 128_004,
        "dtype": "bfloat16", "device": "cuda", "attention": "sdpa",
    },
    "generation": {
        "processor": "generic", "processor_parameters": {}, "placeholder": "0.0000,0.0000,0.0000",
        "sampling": "greedy", "sampling_parameters": {}, "cache": "dynamic", "batch_size": 2, "seed": 0,
        "max_new_tokens": 3,
    },
    "timings": {
        "warmup_ns": [5000],
        "repeats": [repeat(1195, 1100), repeat(995, 900), repeat(1095, 1000)],
        "mark_ns": 50.0, "unmarked_wall_ns": None, "profiled_steps_ns": 1800, "unprofiled_steps_ns": 900,
    },
    "window": {"full": False, "batch": 0, "first_step": 1, "last_step": 2},
    "steps_per_batch": [3],
    "molecules": [
        {
            "sequence": 0, "batch": 0, "row": 0, "smiles": "C", "prompt": "[SMILES]C[/SMILES]",
            "prompt_tokens": 4, "token_ids": [5, 6, 7], "kinds": "cfj", "blocks": [-1, 0, 0],
            "text": "[C]<1.0,2.0,3.0abra",
            "valid": False, "problem": "no [/CONFORMER]", "malformed_blocks": 0, "masked_logits": 300,
            "template": {"tokens": 16, "free": 14, "blocks": 1, "free_per_block": [14]},
        },
        {
            "sequence": 1, "batch": 0, "row": 1, "smiles": "O", "prompt": "[SMILES]O[/SMILES]",
            "prompt_tokens": 4, "token_ids": [8, 9], "kinds": "ce", "blocks": [-1, -1],
            "text": "[O]", "valid": True,
            "problem": None, "malformed_blocks": 0, "masked_logits": 100,
            "template": {"tokens": 30, "free": 28, "blocks": 2, "free_per_block": [14, 14]},
        },
    ],
    "skipped": [],
}  # fmt: skip


def document() -> dict[str, Any]:
    """The captured run as it would be read from its file; free to be changed."""
    return copy.deepcopy({"traceEvents": EVENTS, "molprof": MANIFEST})


def cpu_document() -> dict[str, Any]:
    """The same run as a CPU records it: no calls, no GPU work."""
    changed = document()
    gpu = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
    changed["traceEvents"] = [event for event in changed["traceEvents"] if event.get("cat") not in gpu]
    changed["molprof"]["environment"]["gpu"] = None
    changed["molprof"]["model"]["device"] = "cpu"
    return changed


def fine(content: dict[str, Any]) -> dict[str, Any]:
    """The trace with one operator 1 ns longer, as only a clock that counts nanoseconds can tell."""
    events = [dict(event) for event in content["traceEvents"]]
    next(event for event in events if event.get("cat") == "cpu_op")["dur"] += 0.001
    return {**content, "traceEvents": events}


def write(path: Path, content: dict[str, Any]) -> Path:
    """Writes a trace, whole as torch writes it, and packed where the name ends so."""
    data = json.dumps({**content, "traceName": content.get("traceName", "trace.json")}).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def report(path: Path, content: dict[str, Any]) -> Report:
    """The report of the trace, which is written. Equal content is read once, as nobody changes a report."""
    write(path, content)
    key = (path.suffix, json.dumps(content))
    if key not in _reports:
        _reports[key] = api.report(path)
    return replace(_reports[key], trace=replace(_reports[key].trace, path=str(path)))
