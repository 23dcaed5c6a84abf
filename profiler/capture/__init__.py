"""A capture: timed and recorded passes of generation, and the trace file that it writes."""
