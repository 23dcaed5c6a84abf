"""A capture: passes of generation, timed and recorded, and the trace file that they end in."""
