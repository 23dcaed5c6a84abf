"""Many cases: grids of options, the folder of a sweep, its results."""
