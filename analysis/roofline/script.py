"""One operator of a trace as a separate program: its arguments with random data, and the time of a call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from molprof.analysis.frame import read_frame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.roofline.operands import RECORD_SHAPES, TYPES, Operand, Operands, arguments_text, read_operands
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import TraceError, UsageError
from molprof.common.text import escaped, shortened

# Operators whose integers are rows of their first tensor -> its dimension, or the argument that tells it.
_ROWS: dict[str, tuple[int | None, int]] = {
    "aten::embedding": (None, 0), "aten::index_select": (1, 0), "aten::gather": (1, 0), "aten::scatter": (1, 0),
    "aten::scatter_": (1, 0), "aten::index_add_": (1, 0), "aten::index_copy_": (1, 0), "aten::take": (None, 0),
}  # fmt: skip
# The only door for names of a trace into the program: what fits cannot end a string.
_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)
_WORDS = {"True": "True", "False": "False", "None": "None", "": "None", "inf": "float('inf')", "nan": "float('nan')"}
_WORDS["-inf"] = "float('-inf')"
_LARGEST, _DIGITS = 1 << 64, 40  # integers of torch are below it; more digits are no integer


@dataclass(frozen=True)
class ScriptCall:
    """Calls of one operator with the same arguments.

    Attributes:
        time_ns: of the kernels, copies and sets that they start; or, where none are recorded, of the calls on the host.
        own_ns: of that, without operators that they call, as a measure of what it is worth to look at.
        on_gpu: which of the two times it is.
    """

    operator: str
    operands: Operands
    calls: int
    time_ns: int
    own_ns: int
    on_gpu: bool

    @property
    def arguments(self) -> str:
        """The arguments as text."""
        return arguments_text(self.operands)


def read_called(engine: TraceProcessor, info: TraceInfo) -> tuple[ScriptCall, ...]:
    """Return the operators that start GPU work, or all where there is none; the longest own time first.

    The trace must be loaded with Python stacks. Raises TraceError where no shapes are recorded.
    """
    work = read_frame(engine, "work", "operator_id dur")
    operators = read_frame(engine, "operators", "id name dur own_ns")
    on_gpu = bool(len(work))
    times: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    if on_gpu:
        for item, ns in zip(work["operator_id"].tolist(), work["dur"].tolist(), strict=True):
            if item is not None:
                times[item] = [times[item][0] + ns] * 2
    else:
        for item, ns, own_ns in zip(*(operators[name].tolist() for name in ("id", "dur", "own_ns")), strict=True):
            times[item] = [ns, own_ns]
    names = dict(zip(operators["id"].tolist(), operators["name"].tolist(), strict=True))
    sums: defaultdict[tuple[str, Operands], list[int]] = defaultdict(lambda: [0, 0, 0])
    for item, operands in read_operands(engine, times).items():
        if any(one.is_tensor or one.parts for one in operands):
            added = zip(sums[names[item], operands], (1, *times[item]), strict=True)
            sums[names[item], operands] = [first + second for first, second in added]
    if not sums:
        raise TraceError(f"{info.path} records no shapes of operators", hint=RECORD_SHAPES)
    script_calls = [ScriptCall(*key, calls, ns, own_ns, on_gpu) for key, (calls, ns, own_ns) in sums.items()]
    return tuple(sorted(script_calls, key=lambda one: (-one.own_ns, one.operator, one.arguments)))


def script_of(called: ScriptCall, about: str) -> str:
    """Return the program, which needs torch alone. about: a line for its head, plain text.

    Raises UsageError where the arguments do not tell the call.
    """
    if not _NAME.fullmatch(called.operator):
        name = escaped(shortened(called.operator))
        raise UsageError(f"{name!r} is no operator that torch can be asked for", hint="choose another")
    bound = _bound(called)
    arguments = "".join(f"        {_argument(called, one, bound)},\n" for one in called.operands)
    about = "".join(char if char.isprintable() and char not in '"\\' else "?" for char in about)
    return _SCRIPT.format(about=about, operator=called.operator, arguments=arguments)


def _bound(called: ScriptCall) -> int:
    """Return the number that integers in the call's tensors must be below."""
    first = next((one.shape for one in called.operands if one.is_tensor), ())
    if called.operator not in _ROWS or not first:
        return 2
    index, dim = _ROWS[called.operator]
    if index is not None:
        dims = called.operands[index] if index < len(called.operands) else Operand()
        try:
            (dim,) = dims.numbers()
        except ValueError:
            raise _no_dimension(called, dims.value) from None
    if not -len(first) <= dim < len(first):
        raise _no_dimension(called, str(dim))
    return max(1, first[dim])


def _no_dimension(called: ScriptCall, value: str) -> UsageError:
    text = escaped(shortened(value)) or "nothing"
    return UsageError(f"{called.operator} was called with {text} as its dimension", hint="choose another operator")


def _argument(called: ScriptCall, one: Operand, bound: int) -> str:
    if one.is_tensor:
        return _tensor(one.shape, one.strides, one.type, bound)
    if one.parts:
        kinds = [other.type for other in called.operands if other.is_tensor] or ["float"]
        shapes = (_tensor(shape, (), kinds[0], bound) for shape in one.parts)
        return f"[{', '.join(shapes)}]"
    if one.type == "Scalar" and not one.value:
        raise UsageError(
            f"the numbers that {called.operator} was called with are not recorded",
            hint="torch 2.1 and newer record them with the shapes",
        )
    if one.value.startswith("[") and one.value.endswith("]"):
        return f"[{', '.join(_value(called, item.strip()) for item in one.value[1:-1].split(',') if item.strip())}]"
    return _value(called, one.value)


def _value(called: ScriptCall, text: str) -> str:
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        if not text.lstrip("+-").isdigit():
            if isfinite(float(text)):
                return repr(float(text))
        elif len(text) <= _DIGITS and abs(int(text)) < _LARGEST:
            return repr(int(text))  # 007 is no number in Python
    shown = escaped(shortened(text))
    raise UsageError(f"{called.operator} was called with {shown!r}, which is no number", hint="choose another operator")


def _tensor(shape: Iterable[int], strides: Iterable[int], kind: str, bound: int) -> str:
    return f"tensor({list(shape)}, {list(strides)}, torch.{TYPES[kind][0]}, {bound})"


_SCRIPT = '''"""{about}

Random data; nothing of the model. python THIS_FILE prints the time of a call; --json prints it as JSON.
"""

import json
import os
import sys

import torch
from torch.utils.benchmark import Timer

OPERATOR = "{operator}"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
THREADS = max(1, (os.cpu_count() or 2) - 1)  # as molprof capture leaves one to others


def tensor(shape, strides, dtype, bound):
    """Random elements; whole numbers from 0 to below `bound`. A number alone stays on the CPU, as Python's are."""
    device = DEVICE if shape or dtype != torch.float64 else "cpu"
    strides = strides if len(strides) == len(shape) else list(torch.empty(shape, device="meta").stride())
    size = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides)) if 0 not in shape else 0
    if DEVICE == "cpu" and size * dtype.itemsize > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise MemoryError(f"a tensor of {{size * dtype.itemsize:,}} bytes is larger than the memory")
    if dtype.is_floating_point or dtype.is_complex:
        kind = dtype if dtype.is_complex or dtype.itemsize > 1 else torch.float32
        flat = torch.randn(size, device=device, dtype=kind).to(dtype)
    else:
        flat = torch.randint(0, bound, (size,), device=device).to(dtype)
    return torch.as_strided(flat, shape, strides)


def arguments():
    return [
{arguments}    ]


def chosen(packet, given):
    """The overload that takes the arguments, and the call of it: those behind * go by name."""
    problem = "no overload takes as many"
    overloads = [getattr(packet, name) for name in packet.overloads()]
    fitting = [one for one in overloads if len(one._schema.arguments) >= len(given)]
    for overload in sorted(fitting, key=lambda one: -len(one._schema.arguments)):
        schema = overload._schema.arguments
        plain = [value for value, known in zip(given, schema) if not known.kwarg_only]
        named = {{known.name: value for value, known in zip(given, schema) if known.kwarg_only and value is not None}}
        try:
            overload(*plain, **named)
        except (TypeError, RuntimeError, NotImplementedError, IndexError) as error:
            problem = str(error).split(". ")[0].splitlines()[0]
        else:
            return overload, plain, named
    sys.exit(f"{{OPERATOR}} does not take these arguments here: {{problem}}")


def gpu_ns(packet):
    """GPU time of a call: calls in one CUDA graph, each with data of its own, so that no cache keeps them.

    None without a GPU, or where the operator cannot be in a graph.
    """
    if DEVICE == "cpu":
        return None
    own = sum(item.nbytes for item in arguments() if torch.is_tensor(item)) or 1
    wanted = 2 * torch.cuda.get_device_properties(0).L2_cache_size // own + 1
    each = [chosen(packet, arguments()) for _ in range(max(2, min(wanted, 200, 2**32 // own)))]
    times = []
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for overload, plain, named in each:
                overload(*plain, **named)
        for _ in range(21):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e6 / len(each))
    except RuntimeError:
        return None
    return torch.tensor(times[1:]).median().item()


with torch.inference_mode():
    namespace, name = OPERATOR.split("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        sys.exit(f"{{OPERATOR}} is not known here: import the library that has it, and call it in this file")
    try:
        given = arguments()
    except (ArithmeticError, AttributeError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        sys.exit(f"the arguments of {{OPERATOR}} cannot be made here: {{(str(error) or repr(error)).splitlines()[0]}}")
    overload, plain, named = chosen(packet, given)
    timer = Timer("overload(*plain, **named)", globals=globals(), num_threads=THREADS)
    measured = timer.blocked_autorange(min_run_time=0.5)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    low, high = (torch.tensor(measured.times).quantile(share).item() * 1e9 for share in (0.1, 0.9))
    result = {{"operator": OPERATOR, "overload": str(overload), "device": device, "torch": torch.__version__,
              "median_ns": measured.median * 1e9, "low_ns": low, "high_ns": high, "gpu_ns": gpu_ns(packet)}}
    if "--json" in sys.argv:
        print(json.dumps(result))
    else:
        gpu = "" if result["gpu_ns"] is None else f", {{result['gpu_ns'] / 1e3:,.2f}} us of the GPU"
        each = f"{{measured.median * 1e6:,.2f}} us a call{{gpu}}"
        print(f"{{OPERATOR}}: {{each}} on {{device}}, torch {{torch.__version__}}")
'''
