"""Peaks of devices, by the names that torch gives them: dense products, other arithmetic, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from molprof.common.errors import UsageError

MEMORY = "memory"
VECTOR = "fp32"  # what is not a product of matrices
FP4 = "fp4"
# Kinds of numbers that are multiplied, by the types that torch.profiler writes.
KINDS = {
    "c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64", "signed char": "int8",
    "unsigned char": "int8", "c10::Float8_e4m3fn": "fp8", "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2": "fp8",
    "c10::Float8_e5m2fnuz": "fp8", "c10::Float4_e2m1fn_x2": FP4,
}  # fmt: skip
NAMES = (MEMORY, "bf16", "fp16", "tf32", "fp8", FP4, "int8", "fp32", "fp64")


@dataclass(frozen=True)
class Peaks:
    """The peak rates of one device, per second."""

    name: str
    source: str
    tflops: Mapping[str, float] = field(default_factory=dict)  # dense, by kind of number; as vendors state them
    memory_tbps: float | None = None  # 10^12 bytes per second
    capacity_gb: float | None = None  # 10^9 bytes; None where the name does not tell

    def flops_ns(self, kind: str, flops: int) -> float | None:
        """Return the least time of so many FLOPs, ns; None where the device's peak is not known."""
        peak = self.tflops.get(kind)
        return None if not peak else flops / (peak * 1e3)

    def bytes_ns(self, count: int) -> float | None:
        """Return the least time to move so many bytes, ns; None where the device's peak is not known."""
        return None if not self.memory_tbps else count / (self.memory_tbps * 1e3)


def _peaks(
    source: str, memory: float, bf16: float | None, fp32: float, gb: float | None = None, **others: float
) -> Peaks:
    """Return peaks; fp16 is as fast as bf16 unless given."""
    halves = {} if bf16 is None else {"bf16": bf16, "fp16": bf16}
    return Peaks("", source, {**halves, "fp32": fp32, **others}, memory, gb)


# By device name, the first that fits. Dense figures (without sparsity), at boost clock, of the vendors' data sheets.
DEVICES: tuple[tuple[str, Peaks], ...] = (
    ("*GB200*",
     _peaks("NVIDIA GB200 data sheet", 8.0, 2500, 80, 186, fp8=5000, fp4=10000, tf32=1250, int8=5000, fp64=40)),
    ("*B200*",
     _peaks("NVIDIA DGX B200 data sheet", 8.0, 2250, 75, 180, fp8=4500, fp4=9000, tf32=1125, int8=4500, fp64=37)),
    ("*H200*", _peaks("NVIDIA H200 data sheet, SXM", 4.8, 989, 67, 141, fp8=1979, tf32=494.5, int8=1979, fp64=67)),
    ("*H100 PCIe*", _peaks("NVIDIA H100 data sheet, PCIe", 2.0, 756, 51, 80, fp8=1513, tf32=378, int8=1513, fp64=51)),
    ("*H100 NVL*", _peaks("NVIDIA H100 data sheet, NVL", 3.9, 835.5, 60, 94, fp8=1671, tf32=417.5, int8=1671, fp64=60)),
    ("*H100*", _peaks("NVIDIA H100 data sheet, SXM", 3.35, 989, 67, 80, fp8=1979, tf32=494.5, int8=1979, fp64=67)),
    ("*A100*80GB PCIe*",
     _peaks("NVIDIA A100 data sheet, 80 GB PCIe", 1.935, 312, 19.5, 80, tf32=156, int8=624, fp64=19.5)),
    ("*A100*80GB*", _peaks("NVIDIA A100 data sheet, 80 GB SXM", 2.039, 312, 19.5, 80, tf32=156, int8=624, fp64=19.5)),
    ("*A100*", _peaks("NVIDIA A100 data sheet, 40 GB", 1.555, 312, 19.5, 40, tf32=156, int8=624, fp64=19.5)),
    ("*L40S*", _peaks("NVIDIA L40S data sheet", 0.864, 362, 91.6, 48, fp8=733, tf32=183, int8=733)),
    ("*L4", _peaks("NVIDIA L4 data sheet", 0.3, 121, 30.3, 24, fp8=242.5, tf32=60, int8=242.5)),
    ("*A10", _peaks("NVIDIA A10 data sheet", 0.6, 125, 31.2, 24, tf32=62.5, int8=250)),
    ("*V100*SXM*", _peaks("NVIDIA V100 data sheet, SXM2", 0.9, None, 15.7, fp16=125, fp64=7.8)),
    ("*V100*", _peaks("NVIDIA V100 data sheet, PCIe", 0.9, None, 14, fp16=112, fp64=7)),
    ("*Tesla T4*", _peaks("NVIDIA T4 data sheet", 0.32, None, 8.1, 16, fp16=65, int8=130)),
    ("*MI355X*",
     _peaks("AMD Instinct MI355X data sheet", 8.0, 2516.6, 157.3, 288, fp8=5033.2, fp4=10066.3, int8=5033.2,
            fp64=78.6)),
    ("*MI325X*",
     _peaks("AMD Instinct MI325X data sheet", 6.0, 1307.4, 163.4, 256, fp8=2614.9, tf32=653.7, int8=2614.9)),
    ("*MI300X*",
     _peaks("AMD Instinct MI300X data sheet", 5.3, 1307.4, 163.4, 192, fp8=2614.9, tf32=653.7, int8=2614.9)),
    # Each of its two dies is a device of its own.
    ("*MI250X*", _peaks("AMD Instinct MI250X data sheet, per die", 1.638, 191.5, 23.9, 64, fp64=23.9)),
    ("*MI250*", _peaks("AMD Instinct MI250 data sheet, per die", 1.638, 181, 22.6, 64, fp64=22.6)),
    ("*MI210*", _peaks("AMD Instinct MI210 data sheet", 1.638, 181, 22.6, 64, fp64=22.6)),
)  # fmt: skip


_LEAST, _MOST = 1e-6, 1e9  # of what is given


def peaks_of(name: str | None, given: Sequence[str] = ()) -> Peaks:
    """Return the peaks of a device by its name.

    `given`, such as `bf16=989` or `memory=3.35`, count in place of those known.

    Peaks without figures for a device that is not known. Raises UsageError where one that is given cannot be read.
    """
    listed = next((peaks for pattern, peaks in DEVICES if name is not None and fnmatchcase(name, pattern)), None)
    tflops, memory = (dict(listed.tflops), listed.memory_tbps) if listed else ({}, None)
    for text in given:
        kind, equals, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if kind not in NAMES or not equals or not _LEAST <= value <= _MOST:
            hint = "memory=TB_PER_S, or TFLOP/s of dense products of one kind of number: bf16=989; " + ", ".join(NAMES)
            raise UsageError(f"--peak {text}: not NAME=NUMBER", hint=hint)
        if kind == MEMORY:
            memory = value
        else:
            tflops[kind] = value
    source = listed.source if listed else ""
    if given:
        source = f"{source}; " * bool(source) + "given: " + ", ".join(given)
    return Peaks(name or "", source, tflops, memory, listed.capacity_gb if listed else None)
