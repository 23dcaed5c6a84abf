"""The profiler: runs a model, and writes one trace."""
