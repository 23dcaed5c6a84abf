"""How often torch.compile compiled: counted in timed passes, from torch's own book."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from captures import captured, settings
from tiny import loaded

from molprof.profiler.engines.compilation import Compiles, compiles_so_far
from molprof.profiler.molecules.prompts import read_prompts


def test_first_and_again() -> None:
    torch._dynamo.reset()
    layer = torch.compile(torch.nn.Linear(4, 4), backend="eager", dynamic=False)
    start = compiles_so_far()
    layer(torch.ones(2, 4))
    layer(torch.ones(2, 4))
    first = compiles_so_far()
    layer(torch.ones(3, 4))  # another shape
    second = compiles_so_far()
    assert (first.since(start).count, second.since(first).count) == (1, 1)
    assert (second.since(first).time_ns or 0) > 0
    assert second.since(second) == Compiles(0, 0)


def test_what_torch_does_not_tell_is_not_recorded() -> None:
    assert Compiles(None, None).since(Compiles(3, 5)) == Compiles(None, None)
    assert Compiles(3, 5).since(Compiles(None, None)) == Compiles(None, None)
    # Its book was emptied in between.
    assert Compiles(0, 0).since(Compiles(3, 5)) == Compiles(None, None)


def test_nothing_is_imported_to_count_nothing() -> None:
    code = (
        "import sys; from molprof.profiler.engines.compilation import compiles_so_far as count; print(count());"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "Compiles(count=0, time_ns=0)\nFalse\n"


def test_timed_passes_count_their_compiles(tmp_path: Path) -> None:
    (tmp_path / "in.smi").write_text("C\nCC\n")
    asked = settings(batch_size=1, warmup=0, count=2, max_new_tokens=3)
    prompts = read_prompts(tmp_path / "in.smi", 2)
    model = loaded("llama")
    torch._dynamo.reset()
    original = model.model.model.norm.forward
    model.model.model.norm.forward = torch.compile(original, backend="eager", dynamic=False)
    try:
        repeats = captured(tmp_path / "out.json", asked, prompts, model).manifest.timings.repeats
    finally:
        model.model.model.norm.forward = original
    # Two shapes of a prompt and one of a step in the first pass, none in the second.
    counts = [repeat.compiles for repeat in repeats]
    assert counts[0] is not None
    assert counts[0] >= 2
    assert counts[1] == 0
    assert (repeats[0].compile_ns or 0) > 0
    assert repeats[1].compile_ns == 0
