"""Whether a capture to `.pftrace` is refused: by what the installed torch writes under that name."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from molprof.common.errors import UsageError
from molprof.profiler.capture.native import check_native, exports_native


def written(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch export this."""
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda _, path: Path(path).write_bytes(content))


def test_the_installed_torch_is_asked(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(2)
    profiler.export_chrome_trace(str(tmp_path / "x.pftrace"))
    assert exports_native() == (not (tmp_path / "x.pftrace").read_text().lstrip().startswith("{"))


def test_an_output_that_torch_does_not_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    written(b' {\n "schemaVersion"', monkeypatch)
    with pytest.raises(UsageError) as refused:
        check_native(Path("some", "Run.pftrace.gz"))
    what = "does not write .pftrace: under that name it writes Chrome JSON too"
    assert str(refused.value) == f"{Path('some', 'Run.pftrace.gz')}: torch {torch.__version__} {what}"
    assert refused.value.hint == "-o Run.json.gz, which the Perfetto UI opens"


def test_an_output_that_torch_writes_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    written(b"\x0a\x05abcde", monkeypatch)
    check_native(Path("run.pftrace"))


def test_a_machine_without_the_packages_that_write_packets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "perfetto" else object())
    with pytest.raises(UsageError, match=r"writing \.pftrace needs the package 'perfetto', which is not installed"):
        check_native(Path("run.pftrace"))


@pytest.mark.parametrize(
    ("content", "native"),
    [
        (b'\n{"schemaVersion": 1', False),
        (b"\n[{}]", False),
        (b"", False),
        (gzip.compress(b'{\n "schemaVersion": 1', mtime=0), False),
        (b"\n{\x40" + bytes(122), True),  # a packet of as many bytes as the number of `{`
        (gzip.compress(b"\n\x05abcde", mtime=0), True),
    ],
)
def test_the_first_bytes_tell(monkeypatch: pytest.MonkeyPatch, content: bytes, native: bool) -> None:
    written(content, monkeypatch)
    assert exports_native() == native


def test_the_command_says_so_in_one_line(molprof: object) -> None:
    result = molprof("capture", "--model", "qwen", "-o", "x.pftrace")  # type: ignore[operator]
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert lines[0].startswith(f"molprof: error: x.pftrace: torch {torch.__version__} ")
    assert lines[1:] == ["  -o x.json.gz, which the Perfetto UI opens"]
