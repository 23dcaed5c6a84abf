"""Sequences of kernels or operators: two of them aligned."""
