"""Many command lines: grids of options, jobs on a cluster, their results."""
