"""The Perfetto UI on this machine: the trace as the reader kept it, the tracks to show, and the server."""
