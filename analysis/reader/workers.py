"""Processes that read blocks of events beside this one: text in through shared memory, parts out through pipes."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from types import TracebackType
from typing import IO, Any

import msgspec

from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.part import Part, part_reader
from molprof.analysis.reader.unpack import BLOCK_BYTES

# Blocks given ahead to each process: one to work on, one to go on with at once.
_BLOCKS_EACH = 2
_MAX_PROCESSES = 8
_SLOT_BYTES = 4 * BLOCK_BYTES
# A request says where the text lies in the memory and how long it is; an answer, how long the part is that follows.
_REQUEST = struct.Struct("<QQ")
_ANSWER = struct.Struct("<q")
_FAILED = -1
# As for other processes: what the parent imports, whatever the working directory.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from molprof.analysis.reader.workers import serve; serve()"
)
# A pipe of this size holds an answer while the parent does something else.
_SET_PIPE_SIZE, _PIPE_BYTES = 1031, 1 << 20


class Workers:
    """As many processes as wanted, started with the first block; blocks come back in the order in which they went.

    Whatever fails (a block that does not decode, a process that cannot be started or was killed) is no part: the block
    is then for the caller to read, who finds out what is wrong with it.
    """

    def __init__(self, wanted: Wanted, count: int) -> None:
        self._wanted = wanted
        self._count = min(count, _MAX_PROCESSES)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._memory: mmap.mmap | None = None
        self._given = self._taken = 0
        # Shared memory without a name, which ends with its last process, is Linux's.
        self.usable = count > 1 and hasattr(os, "memfd_create")

    @property
    def full(self) -> bool:
        """Whether a part must be taken before the next block is given."""
        return self._given - self._taken == self._count * _BLOCKS_EACH

    def give(self, text: memoryview) -> bool:
        """Hands a block over, whose text lacks the brackets; whether that was possible."""
        length = len(text) + 2
        if not self.usable or length > _SLOT_BYTES or not (self._processes or self._started()):
            return False
        slot = self._given % (self._count * _BLOCKS_EACH)
        begin = slot * _SLOT_BYTES
        assert self._memory is not None
        self._memory[begin] = ord("[")
        self._memory[begin + 1 : begin + length - 1] = text
        self._memory[begin + length - 1] = ord("]")
        pipe = self._processes[slot % self._count].stdin
        assert pipe is not None
        try:
            pipe.write(_REQUEST.pack(begin, length))
            pipe.flush()
        except OSError:
            self.usable = False
            return False
        self._given += 1
        return True

    def take(self) -> Part | None:
        """The part of the block given first of those not taken; None where there is none, and it is to be read here."""
        process = self._processes[self._taken % self._count]
        self._taken += 1
        assert process.stdout is not None
        head = process.stdout.read(_ANSWER.size)
        if len(head) == _ANSWER.size:
            (length,) = _ANSWER.unpack(head)
            if length == _FAILED:
                return None
            data = process.stdout.read(length)
            if len(data) == length:
                return msgspec.msgpack.decode(data, type=Part)
        self.usable = False  # it was ended from outside
        return None

    def drop(self) -> None:
        """Forgets the blocks that were given and not taken."""
        while self.usable and self._taken < self._given:
            self.take()

    def _started(self) -> bool:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            handle = os.memfd_create("molprof-blocks")
            try:
                size = self._count * _BLOCKS_EACH * _SLOT_BYTES
                os.truncate(handle, size)
                self._memory = mmap.mmap(handle, size)
                arguments = [json.dumps(sys.path), str(handle), json.dumps(msgspec.to_builtins(self._wanted))]
                for _ in range(self._count):
                    process = subprocess.Popen(
                        [sys.executable, "-c", _START, *arguments],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        pass_fds=(handle,),
                        env=environment,
                    )
                    self._processes.append(process)
                    _widen(process.stdout)
            finally:
                os.close(handle)
        except OSError:
            self.usable = False
        return self.usable

    def close(self) -> None:
        """Ends the processes, whatever they do."""
        self.usable = False
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()
        self._processes.clear()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _widen(pipe: IO[bytes] | None) -> None:
    import fcntl

    assert pipe is not None
    try:
        fcntl.fcntl(pipe.fileno(), _SET_PIPE_SIZE, _PIPE_BYTES)
    except OSError:
        return  # a user may have only so much in pipes; a smaller one is slower


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def serve() -> None:
    """The other end: ends when the pipe from the parent does."""
    # An interrupt from the keyboard reaches all processes of the terminal; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle = int(sys.argv[2])
    memory = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    read = part_reader(Wanted(**json.loads(sys.argv[3])))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(request := requests.read(_REQUEST.size)) == _REQUEST.size:
        begin, length = _REQUEST.unpack(request)
        data: Any = b""
        try:
            data = msgspec.msgpack.encode(read(memory[begin : begin + length]))
            size = len(data)
        except Exception:
            size = _FAILED
        answers.write(_ANSWER.pack(size) + data)
        answers.flush()
