"""The Triton kernel of `truncate` and `grammar`, compiled for GPUs that need not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import loaded

from molprof.profiler.constraints import make_processor
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import build_template

pytest.importorskip("triton", reason="the extra xgrammar installs Triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from molprof.profiler.constraints import fused

_TYPES = {torch.int64: "*i64", torch.int32: "*i32", torch.float32: "*fp32"}


class Recorded:
    """In place of the kernel: keeps what it is launched with."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            self.grid, self.arguments, self.constants = grid, arguments, constants

        return launch


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_for_a_gpu(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, target = loaded("qwen").tokenizer, loaded("qwen").target
    processor: Any = make_processor("grammar", target)
    items = [molecule("CO"), molecule("c1ccccc1")]
    batch = processor.start([build_template(item, tokenizer, processor.placeholder) for item in items], 4)
    kernel, recorded = fused._step, Recorded()
    monkeypatch.setattr(fused, "_step", recorded)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    scores = torch.zeros(2, target.logits_width)
    fused.step(torch.zeros(2, 5, dtype=torch.int64), 4, batch._device, batch._at, scores, batch._out)
    assert recorded.grid == (2,)
    types = [_TYPES[item.dtype] if isinstance(item, torch.Tensor) else "i32" for item in recorded.arguments]
    signature = dict(zip(kernel.arg_names, [*types, *("constexpr" for _ in recorded.constants)], strict=True))
    source = ASTSource(fn=kernel, signature=signature, constexprs=recorded.constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert made.asm["cubin"]
