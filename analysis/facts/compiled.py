"""Traces of torch.compile: slices of the code that it generated, and kernels that Inductor generated."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from msgspec import Struct

# Names of operators and annotations in which such code runs, by what leaves them: Dynamo, AOTAutograd, Inductor, and
# what Dynamo and AOTAutograd run around it.
_CODE = tuple(
    re.compile(pattern)
    for pattern in (
        r"Torch-Compiled Region",
        r"(autograd::engine::evaluate_function: )?CompiledFunction",
        r"## Call CompiledFxGraph",
        r"TorchDynamo |Pregraph bytecode|AOTDispatcher ",
    )
)
REGION, FUNCTION, GRAPH, AROUND = range(len(_CODE))
# torch writes the operators that a kernel fuses into its name, unless it is told not to.
INDUCTOR_KERNEL = re.compile(r"triton_[a-z]+_fused_|triton_(poi|red|per)_")
# Before torch 2.2 Inductor's kernels have such names too, as have those of others.
_TRITON = "triton_"


class CompiledCode(Struct, frozen=True):
    """Which signs of torch.compile a trace has."""

    code: frozenset[int]  # REGION, FUNCTION, GRAPH, AROUND
    inductor_kernels: bool
    triton_kernels: bool

    @property
    def is_used(self) -> bool:
        """True if the program uses torch.compile, with whatever backend."""
        return bool(self.code) or self.inductor_kernels

    @property
    def by_inductor(self) -> bool:
        """True if Inductor, which fuses kernels and can use graphs, generated some of what runs."""
        return GRAPH in self.code or self.inductor_kernels or (REGION in self.code and self.triton_kernels)

    @property
    def only_traced(self) -> bool:
        """True if torch.compile runs the model, but nothing shows Inductor: only AOTAutograd, or another backend."""
        return not self.code.isdisjoint((REGION, FUNCTION)) and not self.by_inductor


def kind_of(name: str) -> int | None:
    """Return the kind of code in an operator or annotation: REGION, FUNCTION, GRAPH or AROUND; None for other."""
    return next((kind for kind, pattern in enumerate(_CODE) if pattern.match(name)), None)


def compiled_code(code: Collection[int], kernels: Iterable[str]) -> CompiledCode:
    """Return the signs of torch.compile. code: kinds of the code in the trace. kernels: distinct names."""
    names = [name for name in kernels if name.startswith(_TRITON)]
    return CompiledCode(frozenset(code), any(map(INDUCTOR_KERNEL.match, names)), bool(names))
