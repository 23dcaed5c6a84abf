#!/usr/bin/env python3
"""Whether molprof works with the oldest and the newest torch and transformers that setup.cfg allows, as a table.

    python benchmarks/versions.py [--only oldest] [--folder DIR] [--oldest-python PATH] [--torch-index URL]

Each set of versions gets a virtual environment of its own with molprof's wheel, in which captures, a benchmark and
reports run. The oldest set pins the lower bounds; all other packages are the newest that fit. Exit code 1 if a step
fails. It downloads torch: --torch-index https://download.pytorch.org/whl/cpu saves gigabytes of NVIDIA's libraries.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from shared import parser, progress, table

from molprof.common.process import why_failed
from molprof.profiler.wheels import own_wheel

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers")
SMALL = "-n 2 --batch-size 2 --repeats 1 --max-new-tokens 24 --threads 1 --force"
STEPS = {
    "doctor": "doctor",
    "capture qwen": f"capture --model qwen {SMALL} -o qwen.json.gz",
    "capture llama": f"capture --model llama {SMALL} -o llama.json.gz",
    "capture qwen --lp": f"capture --model qwen --lp --disagreement {SMALL} -o lp.json.gz",
    "forced runs": f"capture --model llama --processor grammar --forced-runs {SMALL} -o jump.json.gz",
    "static cache": f"capture --model qwen --processor vectorized --kv-cache static {SMALL} -o static.json.gz",
    "eager attention": f"capture --model llama --attention eager {SMALL} -o eager.json.gz",
    "xgrammar": f"capture --model llama --processor xgrammar {SMALL} -o xgrammar.json.gz",
    "llguidance": f"capture --model qwen --processor llguidance {SMALL} -o llguidance.json.gz",
    "bench sdpa": "bench sdpa --shape 1x2x2x16x32 --backend auto,math --repeats 1 --threads 1 -o sdpa.jsonl",
    "report": "report --no-cache qwen.json.gz lp.json.gz jump.json.gz static.json.gz",
    "compare": "compare --no-cache qwen.json.gz lp.json.gz",
}  # fmt: skip


def lower_bounds() -> dict[str, str]:
    """Lower bounds of Python, torch and transformers in setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = [f"python{setup['options']['python_requires']}", *setup["options.extras_require"]["capture"].split()]
    found = (re.fullmatch(r"([a-z]+)>=([0-9.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def installed(folder: Path, python: str, asked: list[str], wheel: Path, options: argparse.Namespace) -> str:
    """The interpreter of the environment in `folder`, made where it is missing."""
    if not folder.exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True, capture_output=True, text=True)
    own = str(folder / "bin" / "python")
    index = ["--index-url", options.torch_index] if options.torch_index else []
    torch, *others = asked
    for arguments in ([*index, torch], [torch, *others, f"molprof[presets,xgrammar,llguidance] @ {wheel.as_uri()}"]):
        command = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return own


def shown(python: str) -> str:
    code = (
        "import platform, sys; from importlib.metadata import version; "
        "print(*(f'{name} {version(name)},' for name in sys.argv[1:]), 'Python', platform.python_version())"
    )
    return subprocess.run([python, "-c", code, *PACKAGES], check=True, capture_output=True, text=True).stdout.strip()


def outcome(python: str, arguments: str, folder: Path) -> str:
    """`ok`, or why `molprof ARGUMENTS` failed."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MOLPROF_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [python, "-m", "molprof", *arguments.split()],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return "ok" if done.returncode == 0 else f"failed: {why_failed(done.returncode, done.stderr)}"


def tried(name: str, python: str, asked: list[str], wheel: Path, options: argparse.Namespace) -> dict[str, str]:
    """The outcome of every step with one set of versions, its versions first."""
    progress(f"{name}: installing {', '.join(asked)} with {python}")
    folder = Path(options.folder).resolve()
    try:
        own = installed(folder / name, python, asked, wheel, options)
    except (OSError, subprocess.CalledProcessError) as problem:
        text = getattr(problem, "stderr", None) or str(problem)
        return {"versions": "failed: " + text.strip().splitlines()[-1]}
    found = {"versions": shown(own)}
    work = folder / f"{name}-traces"
    work.mkdir(exist_ok=True)
    (work / "sdpa.jsonl").unlink(missing_ok=True)  # results are added to a file
    for step, arguments in STEPS.items():
        found[step] = outcome(own, arguments, work)
        progress(f"{name}: {step}: {found[step]}")
    return found


def main() -> None:
    lowest = lower_bounds()
    made = parser(__doc__)
    made.add_argument("--only", choices=("oldest", "newest"), help="one of the two sets")
    made.add_argument("--folder", help="keep environments and traces here, and use those that are there")
    made.add_argument("--oldest-python", default=f"python{lowest['python']}", metavar="PATH")
    made.add_argument("--newest-python", default=sys.executable, metavar="PATH")
    made.add_argument("--torch-index", metavar="URL", help="package index for torch")
    options = made.parse_args()
    sets = {
        "oldest": (options.oldest_python, [f"{name}=={lowest[name]}" for name in PACKAGES]),
        "newest": (options.newest_python, list(PACKAGES)),
    }
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = options.folder or scratch
        wheel = own_wheel(Path(scratch, "wheel"))
        results = {name: tried(name, *sets[name], wheel, options) for name in sets if options.only in (None, name)}
    rows = [(step, *(result.get(step, "not run") for result in results.values())) for step in ("versions", *STEPS)]
    print(table(("", *results), rows, left=1 + len(results)))
    failed = any(result.get(step) != "ok" for result in results.values() for step in STEPS)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
