"""Rows of many traces by Ray: `python ray_rows.py parts traces/*.json.gz`, then `molprof report rows parts`."""

import sys
from pathlib import Path

import ray

from molprof.analysis.fleet.rows import Fleet, each_row
from molprof.analysis.reader import Reading


@ray.remote(num_cpus=1, max_retries=3)
def row(trace: str, parts: str) -> str | None:
    (found,) = each_row([Path(trace)], Reading(cached=False, processes=1), Fleet(Path(parts)))
    problem: str | None = found.problem
    return problem


if __name__ == "__main__":
    ray.init()
    parts = Path(sys.argv[1]).absolute()
    parts.mkdir(exist_ok=True)
    found = ray.get([row.remote(str(Path(name).absolute()), str(parts)) for name in sys.argv[2:]])
    sys.exit("\n".join(filter(None, found)) or 0)
