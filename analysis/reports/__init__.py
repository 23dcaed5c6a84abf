"""Reports of traces: read from a trace, cached, read in parallel, or stored as JSON."""
