"""Benchmarks: cases, grids, their processes, the file of results; masks of JSON schemas."""
