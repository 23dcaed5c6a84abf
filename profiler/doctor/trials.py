"""What the doctor tries, each in a process with a time limit: what crashes or hangs there harms nobody here."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec

from molprof.common.process import call_line, output_of, why_failed
from molprof.common.settings import AUTO

# Before the answer, on the last line; libraries print before it as they like.
_MARK = "molprof-trial:"


@dataclass(frozen=True)
class Answer:
    """What came of a trial."""

    value: dict[str, Any] | None = None  # what it returned; None if it failed
    problem: str | None = None  # why it failed, on one line; None if it did not
    missing: str | None = None  # the module that is not installed, if that is why
    warnings: tuple[str, ...] = ()  # what libraries warned of


def ask(target: str, *arguments: str, limit_s: float) -> Answer:
    """Call `target` (`module:function`), which takes texts and returns what JSON can hold, in another process."""
    command = call_line(f"{__name__}:answer", target, *arguments)
    try:
        done = output_of(command, limit_s)
    except subprocess.TimeoutExpired:
        return Answer(problem=f"no answer within {limit_s:g} s")
    last = done.stdout.rpartition("\n")[2]
    if not last.startswith(_MARK):
        return Answer(problem=why_failed(done.returncode, done.stderr))
    return msgspec.json.decode(last.removeprefix(_MARK), type=Answer)


def answer() -> None:
    """Make the call in the other process, and print what comes of it."""
    found = _tried(*sys.argv[1:])
    sys.stdout.write(f"\n{_MARK}{json.dumps(found)}")
    sys.stdout.flush()


def _tried(target: str, *arguments: str) -> dict[str, Any]:
    """Return the fields of the `Answer` to a call in this process."""
    module, _, function = target.partition(":")
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found["value"] = getattr(import_module(module), function)(*arguments)
        except ModuleNotFoundError as error:
            found |= {"problem": str(error), "missing": error.name}
        except BaseException as error:
            found["problem"] = " ".join(f"{type(error).__name__}: {error}".split())
    found["warnings"] = [str(item.message) for item in caught]
    return found


def each(target: str, *arguments: str) -> dict[str, Any]:
    """Call `target` with each argument in this process, and return the fields of each `Answer` by argument."""
    return {argument: _tried(target, argument) for argument in arguments}


def ask_each(target: str, *arguments: str, limit_s: float) -> dict[str, Answer]:
    """Return the answer by argument: of one process, or if that one ends early or hangs, of one process for each."""
    together = ask(f"{__name__}:each", target, *arguments, limit_s=limit_s)
    if together.value is None:
        return {argument: ask(target, argument, limit_s=limit_s) for argument in arguments}
    return msgspec.convert(together.value, dict[str, Answer])


def torch_build() -> dict[str, Any]:
    """Return torch's version, what it was built for, and the GPUs that it sees."""
    import torch

    seen = torch.cuda.is_available()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if seen else None,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if seen else [],
    }


def imported(module: str) -> dict[str, Any]:
    """Import a module with its compiled parts, and return its own version, if it has one."""
    found = import_module(module)
    return {"version": getattr(found, "__version__", None)}


def attention(backend: str) -> dict[str, Any]:
    """Run the kernel of a `torch.nn.attention.SDPBackend`, on the first GPU, else on the CPU."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from molprof.profiler.models.device import resolve_device, resolve_dtype

    device = resolve_device(AUTO)
    dtype = resolve_dtype(AUTO, device)
    query = torch.ones(1, 4, 16, 64, device=device, dtype=dtype)  # batch, heads, positions, head size
    with sdpa_kernel(getattr(SDPBackend, backend)):
        result = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    # Every value is one, and so is any weighted mean of them.
    if not torch.allclose(result.float().cpu(), torch.ones(1, 4, 16, 64), atol=1e-2):
        raise RuntimeError("its results are wrong")
    return {"device": device.type}


def preset(name: str) -> dict[str, Any]:
    """Read a preset's checkpoint and its tokenizer, without torch."""
    from molprof.profiler.models.checkpoint import checkpoint_path, read_header
    from molprof.profiler.models.tokenizers import load_backend

    read_header(checkpoint_path(name))
    return {"tokens": load_backend(name).get_vocab_size()}
