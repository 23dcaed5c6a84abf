"""Facts about intervals and links, each computed once in numpy: calls of work, gaps and causes, nesting, chains."""

# Categories of GPU work, and of calls of the runtime and driver.
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
GPU_CALLS = ("cuda_runtime", "cuda_driver")
