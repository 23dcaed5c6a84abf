"""Reports of traces: read from a trace, kept in a cache, made side by side, or stored as JSON."""
