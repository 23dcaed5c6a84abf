"""The pass that records how CUDA graphs are captured, into a trace beside the run's own, which only replays them."""

from __future__ import annotations

from pathlib import Path

import torch

from molprof.common.errors import MolprofError
from molprof.common.files import scratch_file
from molprof.common.settings import AUTO, STATIC_CACHES, CaptureSettings
from molprof.profiler.capture.passes import Passes
from molprof.profiler.capture.recorded_pass import record_steps
from molprof.profiler.models.device import on_gpu
from molprof.profiler.recording.tracefile import OutputFile, beside, read_exported, write_trace

# Key of the trace: what it was recorded for.
GRAPHS_KEY = "molprof_graphs"
# Modes of torch.compile that capture graphs; transformers' own mode is reduce-overhead.
_MODES = (AUTO, "reduce-overhead", "max-autotune")
# torch compiles the forward in its first call, captures it in the second, and replays it from the third on. The first
# decode step is step 1. Compiling is left out: it traces all of torch's compiler.
_FIRST, _LAST = 2, 3


def captures_graphs(settings: CaptureSettings, gpu: bool) -> bool:
    """Whether torch captures CUDA graphs for the settings."""
    compiled = settings.kv_cache in STATIC_CACHES and not settings.drop_finished
    return gpu and compiled and settings.compile in _MODES


def graphs_path(output: Path) -> Path:
    """Where the trace of the capture goes."""
    return beside(output, "graphs")


def graph_pass(passes: Passes, output: OutputFile, steps: int) -> None:
    """Records the capture of the graphs, with stacks and shapes, where the run has graphs.

    It drops all that torch compiled in this process, so that graphs are captured again: nothing may be timed or
    recorded after it. A failure costs the trace of the capture alone, and is told.

    Args:
        steps: of the first batch.
    """
    runner = passes.runner
    if not captures_graphs(runner.settings, on_gpu(runner.loaded.target.device)):
        return
    path = graphs_path(output.path)
    if steps <= _LAST:
        passes.tell("graphs", f"the capture of the graphs is not recorded: answers have {steps} steps, not {_LAST + 1}")
        return
    torch._dynamo.reset()
    try:
        with scratch_file(path) as part:
            raw = output.raw(part)
            record_steps(passes, (0, _FIRST, _LAST), raw, "graphs", whole=True)
            account = {"replay": output.path.name, "command": list(output.command)}
            graphs = OutputFile(path, output.force, output.command)
            write_trace(read_exported(raw, output), graphs, (), {GRAPHS_KEY: account})
    except (MolprofError, RuntimeError) as problem:  # torch's own errors are the latter
        passes.tell("graphs", f"the capture of the graphs is not recorded: {problem}")
    else:
        passes.tell("graphs", f"graphs: molprof report {output.path} --graph-capture {path}")
