"""Whether a trace fits into the available memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from molprof.common.errors import TraceError

_HINT = (
    "read it on a machine or in a job with more memory, or record fewer steps; a report without --stacks leaves out"
    " Python stacks"
)


def check_memory(name: str, events: int, event_bytes: int, root: Path = Path("/")) -> None:
    """Refuses a trace whose `events`, each of which takes `event_bytes` at least, need more memory than there is.

    root: of the file system, for tests. Raises TraceError with both figures.
    """
    available = available_bytes(root)
    needed = events * event_bytes
    if available is not None and needed > available:
        raise TraceError(
            f"{name}: its {events:,} events need about {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB"
            " are available",
            hint=_HINT,
        )


def available_bytes(root: Path = Path("/")) -> int | None:
    """The memory that this process may still take: the machine's, or its control group's where that is less.

    None where it is not known, as on other systems than Linux. What only keeps files at hand counts as available.
    """
    found = list(_of_groups(root))
    with contextlib.suppress(OSError, KeyError, ValueError):
        found.append(_figures(root / "proc/meminfo")["MemAvailable"] * 1024)
    return max(0, min(found)) if found else None


def _of_groups(root: Path) -> Iterator[int]:
    """What the control groups leave, of both versions: docs.kernel.org/admin-guide/cgroup-v2.html, cgroup-v1/memory."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "file")
            elif "memory" in controllers.split(","):
                top = root / "sys/fs/cgroup/memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
            else:
                continue
            group = top / path.strip("/")
            for folder in (group, *group.parents):  # a limit of a group holds for all within it
                with contextlib.suppress(OSError, KeyError, ValueError):
                    limit, used = (int((folder / item).read_text()) for item in names[:2])
                    yield limit - used + _figures(folder / "memory.stat")[names[2]]
                if folder == top:
                    break


def _figures(file: Path) -> dict[str, int]:
    """The numbers of a file of lines `name number` or `name: number kB`."""
    rows = (line.replace(":", " ").split() for line in file.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
