"""The doctor finds what works and what is missing, also on machines without packages or a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from molprof.analysis.roofline.peaks import Peaks, peaks_of
from molprof.common.values import number_text
from molprof.profiler.doctor.peaks import peak_checks
from molprof.profiler.doctor.trials import attention, preset, torch_build

SYMBOL = "_ZN3c104cuda9SetDeviceEi"
ABI_ERROR = f"ImportError('flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: {SYMBOL}')"
AGAIN = "pip uninstall -y flash-attn && pip install --no-cache-dir --no-build-isolation flash-attn"
# A torch that tells of the GPUs in a variable, and whose kernels do not run, each in its own way.
TORCH = """
import os, types, warnings
__version__ = "2.13.0"
float32 = float16 = bfloat16 = None
version = types.SimpleNamespace(cuda="13.0", hip=None)
gpus = os.environ["GPUS"].split()
def is_available():
    if not gpus:
        warnings.warn("The driver is too old (550.1) (Triggered internally at /x/y.cpp:3.)")
    return bool(gpus)
cuda = types.SimpleNamespace(
    is_available=is_available, device_count=lambda: len(gpus), get_device_name=gpus.__getitem__,
    is_bf16_supported=lambda *_: False, get_device_capability=lambda *_: (8, 0), get_device_properties=lambda *_: None,
)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91000))
class Tensor: pass
class dtype: pass
class device:
    def __init__(self, name, index=0): self.type, self.index = name, index
def ones(*shape, **how): return None
"""
ATTENTION = """
import contextlib, os, warnings
class SDPBackend:
    FLASH_ATTENTION, EFFICIENT_ATTENTION, CUDNN_ATTENTION, MATH = "flash", "efficient", "cudnn", "math"
def sdpa_kernel(backend):
    if backend == "efficient":
        os.abort()
    if backend == "flash":
        warnings.warn("Flash attention needs sm80. (Triggered internally at /x/sdp.cpp:3.)")
    raise RuntimeError("No available kernel.")
"""
# The driver's library on a machine with two GPUs.
DRIVER = """
class NVMLError(Exception): pass
class NVMLLibraryMismatchError(Exception): pass
def nvmlInit(): pass
def nvmlSystemGetDriverVersion(): return "550.1"
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "NVIDIA H100"
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules come before all others in the processes that are started."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    return folder


def lacking(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")


def with_torch(folder: Path, gpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUS", gpus)
    (folder / "torch/nn").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text(TORCH)
    (folder / "torch/nn/__init__.py").touch()
    (folder / "torch/nn/attention.py").write_text(ATTENTION)
    (folder / "flash_attn.py").write_text(f"raise {ABI_ERROR}\n")
    (folder / "pynvml.py").write_text(DRIVER)


def checks(folder: Path, code: int) -> tuple[dict[str, bool], dict[str, dict[str, Any]]]:
    """What works, and each check by its name."""
    # Not from a server of the tests, which has the packages of this process.
    line = [sys.executable, "-m", "molprof", "doctor", "--limit", "60", "--format", "json"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    told = json.loads(done.stdout)
    return told["can"], {check.pop("name"): check for check in told["checks"]}


def test_trials_that_work() -> None:
    found = attention("MATH", "CUDNN_ATTENTION")
    assert found["MATH"]["device"] in ("cpu", "cuda")
    assert found["CUDNN_ATTENTION"].keys() <= {"device", "problem"}
    assert torch_build()["version"] == sys.modules["torch"].__version__
    assert preset("qwen") == {"tokens": 151_650}


def test_without_torch_traces_can_be_analysed(packages: Path, tmp_path: Path) -> None:
    lacking(packages, "torch", "transformers", "xgrammar", "llguidance", "pyarrow")
    (packages / "flash_attn.py").write_text(f"raise {ABI_ERROR}\n")
    (tmp_path / "molprof.toml").write_text("[slurm.x]\ntime = 1\nbad = 2\n")
    can, found = checks(tmp_path, 0)
    assert can == {"analysis": True, "capture": False}
    assert found["torch"] == {
        "value": "not installed; molprof capture requires it",
        "state": "missing",
        "fix": "pip install 'torch>=2.6'",
    }
    assert found["pyarrow"] == {
        "value": "not installed; for molprof query --format parquet",
        "state": "absent",
        "fix": "pip install 'pyarrow>=17'",
    }
    kernels = {name: check["state"] for name, check in found.items() if name.startswith("sdpa")}
    assert kernels == dict.fromkeys(("sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math"), "absent")
    assert {found[name]["state"] for name in ("trace processor", "rdkit", "preset qwen")} == {"ok"}
    assert found["preset qwen"]["value"] == "151,650 tokens"
    assert found["flash-attn"] == {
        "value": f"was built for another torch than the installed torch (undefined symbol: {SYMBOL})",
        "state": "broken",
        "fix": f"{AGAIN}; or --attention sdpa",
    }
    assert found["molprof.toml"]["value"].endswith("molprof.toml, line 3, [slurm.x]: unknown key 'bad'; known: "
        "partition, account, qos, constraint, gpus, cpus, time, memory, parallel, setup, sbatch")  # fmt: skip


def test_where_neither_works_the_code_says_so(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "transformers rdkit safetensors tokenizers pyarrow wasmtime xgrammar llguidance submitit mcp"
    lacking(packages, *names.split())
    with_torch(packages, "", monkeypatch)
    can, found = checks(tmp_path, 3)
    assert can == {"analysis": False, "capture": False}
    assert found["trace processor"]["value"].startswith("wasmtime is not installed; reading traces requires it")
    assert found["preset qwen"]["state"] == "missing"
    assert found["gpu"] == {"value": "2 x NVIDIA H100", "state": "ok", "fix": None}
    assert found["driver"]["value"] == "550.1"
    assert found["torch"] == {
        "value": "2.13.0: The driver is too old (550.1)",
        "state": "broken",
        "fix": "install a build of torch for this driver: https://pytorch.org/get-started/locally",
    }
    assert (found["cuda"]["value"], found["cudnn"]["value"]) == ("13.0", "not in this torch")
    assert found["sdpa-math"] == {"value": "torch has none for a CPU", "state": "absent", "fix": None}


def test_kernels_that_do_not_run_on_a_gpu(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(packages, "transformers", "tokenizers", "rdkit", "xgrammar", "llguidance", "pyarrow", "mcp")
    with_torch(packages, "H100", monkeypatch)
    _, found = checks(tmp_path, 0)
    assert (found["torch"]["value"], found["torch"]["state"], found["cudnn"]["value"]) == ("2.13.0", "ok", "91000")
    fix = "--attention sdpa takes one that runs"
    assert found["sdpa-flash"] == {"value": "Flash attention needs sm80.", "state": "broken", "fix": fix}
    assert found["sdpa-math"] == {"value": "No available kernel.", "state": "broken", "fix": fix}
    # It takes its process with it, and no other kernel.
    assert found["sdpa-efficient"]["value"].startswith("ended by SIGABRT, in sdpa_kernel (attention.py:")
    assert "was built for another torch than torch 2.13.0" in found["flash-attn"]["value"]


def test_peaks() -> None:
    checks = peak_checks(60, lambda device: Peaks(device, "a data sheet", {"fp32": 1e-9}))
    found = {check.name: check.value or "" for check in checks}
    assert {"peak fp32", "peak bf16", "peak memory", "peaks"} <= found.keys()
    assert found["peak fp32"].endswith("% of 1e-09 (a data sheet)")
    assert " of " not in found["peak memory"]
    given = found["peaks"].partition(": ")[2].split()[1::2]
    for check in checks[:-1]:
        assert check.measured is not None
        text = number_text(check.measured)
        assert f"{check.name.removeprefix('peak ')}={text}" in given
        assert (check.value or "").startswith(f"{text} ")
    assert peaks_of(None, given).tflops.keys() >= {"fp32", "bf16"}
