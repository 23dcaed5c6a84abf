"""benchmarks/gpu.py: what a call leaves in its folder, however its steps end, and how the next call goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import gpu
import gpu_parts
from gpu_parts import FILE, FULL, TINY, Part, Step

from molprof.common.errors import UsageError

MACHINE = {"gpu": None, "torch": "2"}


def step(folder: Path, name: str, code: str, file: str | None = None, limit_s: float = 60.0) -> Step:
    script = folder / f"{name}.py"
    script.write_text(f"import sys, os, time\nfile = sys.argv[1]\n{code}\n")
    return Step(name, (str(script), FILE), file or f"{name}.json", limit_s)


def run(folder: Path, *steps: Step, again: bool = False, limit_s: float = 60.0) -> dict[str, Any]:
    results = gpu.Results(folder / "results", FULL, MACHINE)
    gpu.run_part(results, "some", Part("some steps", limit_s, steps), again)
    return {
        item["name"]: item
        for item in json.loads((folder / "results" / "evidence.json").read_text())["parts"]["some"]["steps"]
    }


def packed(folder: Path) -> dict[str, bytes]:
    with tarfile.open(folder / "results" / "some.tar") as tar:
        found = {member.name: tar.extractfile(member) for member in tar if member.isreg()}
        return {name: file.read() for name, file in found.items() if file is not None}


def test_each_step_is_kept_with_how_it_ended(tmp_path: Path) -> None:
    good = step(tmp_path, "good", "open(file, 'w').write('7')")
    bad = step(tmp_path, "bad", "open(file, 'w').write('half'); sys.exit('molprof: error: no such GPU')")
    ended = run(tmp_path, good, bad)
    assert (ended["good"]["state"], ended["good"]["file"]) == ("done", "good.json")
    assert (ended["bad"]["state"], ended["bad"]["file"], ended["bad"]["why"]) == ("failed", None, "no such GPU")
    assert ended["bad"]["command"] == [bad.line[0], FILE]
    assert packed(tmp_path) == {"good.json": b"7"}
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["evidence.json", "log.txt", "some.tar"]


def test_the_next_call_runs_only_what_is_not_done(tmp_path: Path) -> None:
    count = "seen = os.path.dirname(sys.argv[0]) + '/runs'; open(seen, 'a').write('x')"
    good = step(tmp_path, "good", f"{count}; open(file, 'w').write(str(os.path.getsize(seen)))")
    late = step(tmp_path, "late", "open(file, 'w').write('there')")
    assert run(tmp_path, good, late, limit_s=0.0)["good"]["state"] == "left out"
    assert run(tmp_path, good)["good"]["state"] == "done"
    ended = run(tmp_path, good, late)
    assert [item["state"] for item in ended.values()] == ["done", "done"]
    assert packed(tmp_path) == {"good.json": b"1", "late.json": b"there"}
    run(tmp_path, good, late, again=True)
    assert packed(tmp_path)["good.json"] == b"2"


def test_a_step_that_hangs_is_stopped_and_its_results_so_far_are_kept(tmp_path: Path) -> None:
    hang = step(tmp_path, "hang", "open(file, 'a').write('one\\n'); time.sleep(60)", "hang.jsonl", limit_s=3.0)
    after = step(tmp_path, "after", "open(file, 'w').write('x')")
    ended = run(tmp_path, hang, after)
    assert (ended["hang"]["state"], ended["after"]["state"]) == ("timed out", "done")
    assert packed(tmp_path)["hang.jsonl"] == b"one\n"
    # The benchmark goes on with its file.
    quick = step(tmp_path, "hang", "open(file, 'a').write('two\\n')", "hang.jsonl")
    run(tmp_path, quick)
    assert packed(tmp_path)["hang.jsonl"] == b"one\ntwo\n"


def test_a_part_stays_below_the_largest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "MOST_BYTES", 20_000)
    small = step(tmp_path, "small", "open(file, 'w').write('x')")
    large = step(tmp_path, "large", "open(file, 'w').write('x' * 30000)")
    ended = run(tmp_path, small, large)
    assert (ended["large"]["state"], ended["large"]["file"]) == ("failed", None)
    assert "20,000 bytes" in ended["large"]["why"]
    assert packed(tmp_path) == {"small.json": b"x"}


def test_results_of_another_machine_are_not_mixed(tmp_path: Path) -> None:
    run(tmp_path, step(tmp_path, "good", "open(file, 'w').write('x')"))
    with pytest.raises(UsageError, match="another machine"):
        gpu.Results(tmp_path / "results", FULL, {**MACHINE, "torch": "3"})
    with pytest.raises(UsageError, match="another machine"):
        gpu.Results(tmp_path / "results", TINY, MACHINE)
    (tmp_path / "results" / "evidence.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        gpu.Results(tmp_path / "results", FULL, MACHINE)


def test_the_parts_fit_their_times_and_files() -> None:
    known = gpu_parts.parts(FULL)
    assert sum(part.limit_s for part in known.values()) <= 25 * 60
    assert max(part.limit_s for part in known.values()) <= 8 * 60
    assert len(known) + 2 <= 8  # files in the folder
    for size in gpu_parts.SIZES:
        for part in gpu_parts.parts(size).values():
            files = [item.file for item in part.steps]
            assert len(set(files)) == len(files)
            assert all(FILE in item.line for item in part.steps)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_the_running_step_too(tmp_path: Path, number: signal.Signals) -> None:
    mark = tmp_path / "mark"
    hang = step(tmp_path, "hang", f"open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(gpu.__file__).parent)!r})\n"
        "import gpu, gpu_parts\n"
        f"part = gpu_parts.Part('', 60, (gpu_parts.Step('hang', {hang.line!r}, 'hang.json', 60),))\n"
        f"gpu.read_environment = lambda: {MACHINE!r}\n"
        "gpu.parts = lambda size: {'some': part}\n"
        f"sys.argv = ['gpu.py', {str(tmp_path / 'results')!r}, '--size', 'tiny']\n"
        "sys.exit(gpu.guarded(gpu.main))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == (143 if number == signal.SIGTERM else 130)
    assert "Traceback" not in errors
    assert not Path(f"/proc/{mark.read_text()}").exists()
