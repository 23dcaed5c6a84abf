"""molprof: why constrained text generation is slower (or faster) than unconstrained, kernel by kernel."""

__version__ = "0.1.0"
