"""The Perfetto UI on this machine: the trace as the reader kept it, what to show of it, and who serves both."""
