"""A trace of one launch and its kernel."""

from __future__ import annotations

TRACE = {
    "traceName": "trace.json",
    "traceEvents": [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 10.5,
            "dur": 2.25,
            "args": {"correlation": 7},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": 14.0,
            "dur": 3.125,
            "args": {"correlation": 7, "device": 0, "stream": 7},
        },
    ],
}
