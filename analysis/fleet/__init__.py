"""Many traces: each becomes one row, kept by the hash of its content; rows are joined to tables."""
