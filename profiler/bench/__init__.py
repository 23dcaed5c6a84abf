"""Benchmarks: cases, their processes, the file of results; masks of JSON schemas."""
