"""Sequences of kernels or operators: two of them aligned, blocks that repeat in one."""
