"""The doctor: trials in other processes, what is made of their answers, and the command with packages that lack."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import Cli

from molprof.profiler.doctor import checks
from molprof.profiler.doctor.checks import ABSENT, BROKEN, MISSING, OK, Check
from molprof.profiler.doctor.trials import Answer, ask, ask_each, attention, preset, torch_build

TRIALS = """
import os, time, warnings
def fine(text):
    print("a library talks")
    warnings.warn("and warns")
    return {"got": text}
def crashes(): os.abort()
def hangs(): time.sleep(60)
def leaves(): os._exit(4)
def raises(): raise ValueError("two\\nlines")
def lacks(): import no_such_module
def tells(what): return {"pid": os.getpid()} if what.strip() == "pid" else globals()[what]()
"""
SYMBOL = "_ZN3c104cuda9SetDeviceEi"
ABI_ERROR = f"ImportError('flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: {SYMBOL}')"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules come before all others, here and in the processes that are started."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    return folder


def fake(folder: Path, name: str, raises: str) -> None:
    (folder / f"{name}.py").write_text(f"raise {raises}\n")


def not_installed(name: str) -> str:
    return f"ModuleNotFoundError(\"No module named '{name}'\", name='{name}')"


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        ("fine", Answer({"got": "x"}, warnings=("and warns",))),
        ("crashes", Answer(problem="killed by SIGABRT")),
        ("leaves", Answer(problem="ended with code 4")),
        ("raises", Answer(problem="ValueError: two lines")),
        ("lacks", Answer(problem="No module named 'no_such_module'", missing="no_such_module")),
    ],
)
def test_a_trials_answer(packages: Path, function: str, answer: Answer) -> None:
    (packages / "some_trials.py").write_text(TRIALS)
    arguments = ("x",) if function == "fine" else ()
    assert ask(f"some_trials:{function}", *arguments, limit_s=60) == answer


def test_a_trial_that_hangs_is_killed(packages: Path) -> None:
    (packages / "some_trials.py").write_text(TRIALS)
    assert ask("some_trials:hangs", limit_s=2).problem == "no answer within 2 s"


def test_trials_of_one_process_and_of_one_each_where_it_dies(packages: Path) -> None:
    (packages / "some_trials.py").write_text(TRIALS)
    lacking = Answer(problem="No module named 'no_such_module'", missing="no_such_module")
    assert ask_each("some_trials:tells", "pid", "lacks", limit_s=60)["lacks"] == lacking
    pids = ask_each("some_trials:tells", "pid", "pid ", limit_s=60)
    assert pids["pid"] == pids["pid "]
    found = ask_each("some_trials:tells", "pid", "crashes", "lacks", limit_s=60)
    assert (found["pid"].problem, found["crashes"], found["lacks"]) == (
        None, Answer(problem="killed by SIGABRT"), lacking,
    )  # fmt: skip


def test_flash_attn_for_another_torch_is_named(packages: Path) -> None:
    fake(packages, "flash_attn", ABI_ERROR)
    answer = ask("molprof.profiler.doctor.trials:imported", "flash_attn", limit_s=60)
    assert checks._flash(answer, Answer({"version": "2.13.0+cu126"})) == Check(
        "flash-attn",
        f"was built for another torch than torch 2.13.0+cu126 (undefined symbol: {SYMBOL})",
        BROKEN,
        "pip uninstall -y flash-attn && pip install --no-cache-dir --no-build-isolation flash-attn; "
        "or --attention sdpa",
    )


@pytest.mark.parametrize(
    ("answer", "value", "state"),
    [
        (Answer({"version": "2.8"}), "2.8", OK),
        (Answer(problem="No module named 'flash_attn'", missing="flash_attn"), "not installed", ABSENT),
        (Answer(problem="killed by SIGSEGV"), "killed by SIGSEGV", BROKEN),
        (
            Answer(problem="ImportError: libcudart.so.11.0: cannot open shared object file: No such file"),
            "was built for another torch than the installed torch"
            " (libcudart.so.11.0: cannot open shared object file)",
            BROKEN,
        ),
    ],
    ids=["works", "absent", "crashes", "cuda"],
)  # fmt: skip
def test_flash_attn(answer: Answer, value: str, state: str) -> None:
    found = checks._flash(answer, Answer(problem="x"))
    assert (found.value, found.state) == (value, state)


def test_a_gpu_that_torch_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase "$1" in *name) echo "NVIDIA H100"; echo "NVIDIA H100";; *) echo 550.1;; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    build = {"version": "2.13.0", "cuda": "13.0", "hip": None, "cudnn": None, "gpus": []}
    gpu, driver, torch, cuda, cudnn = checks._gpu(Answer(build, warnings=("The driver is too old (550.1)",)))
    assert (gpu.value, gpu.state) == ("2 x NVIDIA H100", OK)
    assert driver.state == OK
    assert (torch.value, torch.state) == ("2.13.0: The driver is too old (550.1)", BROKEN)
    assert torch.fix == "install a build of torch for this driver: https://pytorch.org/get-started/locally"
    assert (cuda.value, cudnn.value) == ("13.0", "none")
    cpu = checks._gpu(Answer({**build, "cuda": None}))[2]
    assert cpu.value == "2.13.0: built without CUDA"


def test_an_attention_kernel_that_does_not_run_says_torchs_reason() -> None:
    on_gpu = Answer({"version": "2", "gpus": ["H100"]})
    why = "Flash attention needs sm80. (Triggered internally at /x/sdp.cpp:3.)"
    refused = Answer(problem="RuntimeError: No available kernel.", warnings=(why,))
    assert checks._backend("sdpa-flash", refused, on_gpu) == Check(
        "sdpa-flash", "Flash attention needs sm80.", BROKEN, "--attention sdpa takes one that runs"
    )
    assert checks._backend("sdpa-flash", refused, Answer({"gpus": []})).state == ABSENT
    assert checks._backend("sdpa-flash", Answer({"device": "cuda"}), on_gpu).value == "runs on cuda"
    assert checks._backend("sdpa-flash", Answer(problem="x"), Answer(problem="y")).value == "requires torch"


def test_trials_that_work() -> None:
    assert attention("MATH")["device"] in ("cpu", "cuda")
    assert torch_build()["version"] == sys.modules["torch"].__version__
    assert preset("qwen") == {"tokens": 151_650}


@pytest.mark.parametrize(
    ("answer", "state", "fix"),
    [
        (Answer(problem="no", missing="safetensors"), MISSING, "pip install 'molprof[capture]'"),
        (Answer(problem="ImportError: libX.so", missing=None), BROKEN, "pip install --force-reinstall safetensors"),
        (Answer({"version": None}), OK, None),
    ],
    ids=["missing", "broken", "ok"],
)
def test_a_package_that_capture_needs(answer: Answer, state: str, fix: str | None) -> None:
    found = checks._package("safetensors", answer)
    assert (found.state, found.fix) == (state, fix)


def test_an_optional_package_says_what_needs_it() -> None:
    assert checks._package("submitit", Answer(problem="no", missing="submitit")) == Check(
        "submitit", "not installed; for --submit", ABSENT, "pip install 'molprof[slurm]'"
    )


def test_without_torch_traces_can_be_analysed(packages: Path, molprof: Cli, tmp_path: Path) -> None:
    for name in ("torch", "transformers", "xgrammar", "llguidance", "pyarrow"):
        fake(packages, name, not_installed(name))
    fake(packages, "flash_attn", ABI_ERROR)
    (tmp_path / "molprof.toml").write_text("[slurm.x]\ntime = 1\nbad = 2\n")
    done = molprof("doctor", "--format", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["can"] == {"analysis": True, "capture": False}
    found = {check["name"]: check for check in told["checks"]}
    assert found["torch"] == {
        "name": "torch",
        "value": "not installed; molprof capture requires it",
        "state": "missing",
        "fix": "pip install 'molprof[capture]'",
    }
    states = {name: check["state"] for name, check in found.items()}
    assert [name for name in states if name.startswith("sdpa")] == [
        "sdpa-flash",
        "sdpa-efficient",
        "sdpa-cudnn",
        "sdpa-math",
    ]
    assert {states[name] for name in states if name.startswith("sdpa")} == {"absent"}
    assert states["trace processor"] == states["rdkit"] == states["preset qwen"] == "ok"
    assert "was built for another torch than the installed torch" in found["flash-attn"]["value"]
    assert found["molprof.toml"]["value"].endswith("molprof.toml, line 3, [slurm.x]: unknown key 'bad'; known: "
        "partition, account, qos, constraint, gpus, cpus, time, memory, parallel, setup, sbatch")  # fmt: skip


def test_where_neither_works_the_code_says_so(packages: Path, molprof: Cli) -> None:
    for name in ("torch", "transformers", "rdkit", "safetensors", "xgrammar", "llguidance", "pyarrow", "wasmtime"):
        fake(packages, name, not_installed(name))
    done = molprof("doctor")
    assert done.returncode == 3
    assert "\n\n  analysis: cannot work\n  capture: cannot work\n\n" in done.stdout
    assert "  trace processor  missing: wasmtime is not installed; reading traces requires it" in done.stdout
