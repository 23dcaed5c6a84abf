"""The native engine: found, started, and what is said when it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from molprof.analysis.trace_processor import open_engine
from molprof.common.errors import EngineError


def test_the_environment_names_the_native_one(fake_shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLPROF_TRACE_PROCESSOR", fake_shell)
    with open_engine() as engine:
        assert type(engine._transport).__name__ == "NativeTransport"


def test_a_missing_binary_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no trace processor at '.*nowhere'"):
        open_engine(str(tmp_path / "nowhere"))


def test_a_binary_without_permission_is_named(fake_shell: str) -> None:
    os.chmod(fake_shell, 0o644)
    with pytest.raises(EngineError, match="not executable"):
        open_engine(fake_shell)


def test_a_binary_that_ends_at_once_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "shell"
    path.write_text("#!/bin/sh\necho wrong machine >&2\nexit 1\n")
    path.chmod(0o755)
    with pytest.raises(EngineError, match=r"cannot start .*shell"):
        open_engine(str(path))


def test_a_binary_that_dies_later_is_an_error(fake_shell: str) -> None:
    with open_engine(fake_shell) as engine:
        engine._transport._process.subprocess.kill()  # type: ignore[union-attr]
        engine._transport._process.subprocess.wait()  # type: ignore[union-attr]
        with pytest.raises(EngineError, match="stopped answering"):
            engine.query("SELECT 1")
