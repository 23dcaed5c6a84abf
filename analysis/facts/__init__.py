"""Facts about intervals, each computed once in numpy: gaps and their causes, coverage, nesting, chains of kernels."""

# Categories of GPU work, and of calls of the runtime and driver.
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
GPU_CALLS = ("cuda_runtime", "cuda_driver")
