"""How many threads compute, and how they wait for each other. Before torch is imported.

Threads of OpenMP spin while they wait for each other at the end of every operator. Where another program takes a core,
the others spin until the last one gets its turn, so that a busy machine costs many times its share.
"""

from __future__ import annotations

import os

from molprof.common.memory import processors

# The OpenMP libraries of GCC and of LLVM and Intel read these once, when they are loaded.
_SLEEPING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
_CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def let_threads_sleep() -> None:
    """Makes threads that wait for each other sleep; what the user has set stays."""
    for name, value in _SLEEPING.items():
        os.environ.setdefault(name, value)


def default_threads(usual: int) -> int:
    """Threads of a run on a CPU: torch's own number, but one core stays free for other programs.

    Args:
        usual: what torch would take, which stays where the user set it by a variable of the environment.
    """
    if any(os.environ.get(name) for name in _CHOSEN):
        return usual
    return max(1, min(usual, processors() - 1))
