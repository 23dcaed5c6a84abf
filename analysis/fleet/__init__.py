"""Many traces as units of work: each becomes one row, kept by the hash of its content, and rows are joined."""
