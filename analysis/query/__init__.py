"""A user's query: a module's name, a file or SQL, over one trace or several."""

from molprof.analysis.query.run import Result, joined, run_statement
from molprof.analysis.query.statement import Statement, find_statement

__all__ = ["Result", "Statement", "find_statement", "joined", "run_statement"]
