"""Work elsewhere, by `submit(function, item)` as in `concurrent.futures`: in tasks of Slurm, by workers of Dask.

`process/workers.py` has the same for processes of this machine.
"""

from __future__ import annotations

from concurrent.futures import Executor

SCHEME = "dask://"  # of the address of a Dask scheduler, in place of the name of a cluster


class JobExecutor(Executor):
    """Calls functions of modules with one item each, which it pickles, as it does what they return or raise.

    The future of a call that has no result raises WorkerError. Calls run in the current folder, if it is there.

    Attributes:
        at_once: the calls that run at the same time.
    """

    at_once = 1
