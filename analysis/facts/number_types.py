"""The number type of a matrix product, as far as its kernel's name shows it.

float32 is told of products without tensor cores alone: these multiply 32-bit numbers as TF32.
"""

from __future__ import annotations

import re

# By type, parts of lower-case names; the first that matches decides, so that the smaller of two types is told. cuBLAS,
# CUTLASS, cuDNN and Triton write types out; AMD's libraries have letters after the layout: B and S for bfloat16 inputs
# and float32 sums (BBS), H for float16, S for float32.
_TYPES = (
    ("FP4", r"e2m1|mxfp4|nvfp4|fp4"),
    ("FP8", r"e4m3|e5m2|fp8|float8|f8f8|cijk_\w+?_(?:f8|b8)"),
    ("int8", r"int8|i8i8|_s8_|imma|cijk_\w+?_i8"),
    ("bfloat16", r"bf16|bfloat16|cijk_[a-z]+_[a-z]+_b(?:bs|_)"),
    ("float16", r"fp16|(?<!b)f16|half|hgemm|h16816|h1688|h884|cijk_[a-z]+_[a-z]+_h"),
    ("TF32", r"tf32|tfloat32|_xf32|s1688"),
    ("float64", r"dgemm|f64|double|cijk_[a-z]+_[a-z]+_d"),
    # A cuBLAS that knows TF32 adds up the parts of its products in float32, as `<32, 16, int, float`.
    ("float32", r"^(?!.*splitkreduce_kernel<\d).*(?:sgemm|simt_s|scudnn|<float|f32f32|cijk_[a-z]+_[a-z]+_s)"),
)
_MATCHED = tuple((name, re.compile(pattern)) for name, pattern in _TYPES)


def number_type(kernel: str) -> str | None:
    """Return FP4, FP8, int8, bfloat16, float16, TF32, float64 or float32; None where the name shows none."""
    text = kernel.lower()
    return next((name for name, pattern in _MATCHED if pattern.search(text)), None)
