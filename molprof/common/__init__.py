"""The ground: what analysis, profiler and commands share. Imports nothing above it."""
