"""Decoding loops. Whatever generates imports them, so older packages than they are made for are refused here."""

from molprof.profiler.environment import check_versions

check_versions()
