"""Facts about intervals, each computed once in numpy: gaps and their causes, coverage, nesting, chains of kernels."""
