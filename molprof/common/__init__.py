"""Code that analysis, profiler and commands share. Imports nothing above it."""

# Objects that a process of molprof makes before unused ones are looked for. Python's 700 cost 1 to 4 % of the CPU time
# of a report, and a fifth of that of importing torch and transformers.
GARBAGE = 100_000
