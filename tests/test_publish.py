"""benchmarks/publish.py: a results folder becomes traces, records and pages, or one clear line and nothing else."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_data
import measured
import publish
import pytest
import results_folder
from folder import short_gpu_name
from gpu_like import GPU, simulate
from gpu_parts import TINY
from msgspec.structs import asdict

from molprof.common.errors import MolprofError, TraceError, UsageError
from molprof.common.manifest import KEY

ROOT = Path(__file__).parent.parent
H100 = "NVIDIA H100 80GB HBM3"
# Trace of the folder -> the capture on a CPU that it is made of, and how.
TRACES = {
    "qwen": ("qwen", {}),
    "qwen-grammar": ("qwen-grammar", {}),
    "qwen-static-grammar": ("qwen-grammar", {"graph": True}),
}
Files = dict[str, bytes]
Tree = dict[str, bytes]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """What the archives hold, of a simulated GPU."""
    folder = tmp_path_factory.mktemp("files")
    made = results_folder.records(GPU)
    for name, (source, how) in TRACES.items():
        path = folder / f"{name}.json.gz"
        simulate(ROOT / "traces" / f"cpu-{source}.json.gz", path, **how)
        made[path.name] = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bench_data.ENVIRONMENT, "gpu", GPU)
        made |= results_folder.sweeps(folder)
    doctor = {"schema": 1, "checks": [{"name": "sdpa-flash", "state": "ok", "value": "runs on cuda", "fix": None}]}
    return {**made, "doctor.json": json.dumps(doctor).encode()}


@pytest.fixture
def root(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, without the case study, which takes long."""
    monkeypatch.setattr(publish.case_study, "write_pages", lambda root, rehearsal: None)
    return project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The parts of the project that publishing changes."""
    for name in publish.FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / "root" / name)
    return tmp_path / "root"


def tree(root: Path) -> Tree:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def published(folder: Path, root: Path, rehearsal: bool = True) -> list[str]:
    said: list[str] = []
    publish.publish(folder, root, rehearsal, said.append)
    return said


def test_the_folder_becomes_traces_records_and_pages(files: Files, tmp_path: Path, project: Path) -> None:
    root = project
    folder = results_folder.write(tmp_path / "results", files, GPU)
    before = tree(root)
    assert published(folder, root)[-1].endswith(f" files changed below {root}")
    after = tree(root)
    new = sorted(set(after) - set(before))
    assert [name for name in new if name.startswith("traces/")] == sorted(
        f"traces/rehearsal-{name}.json.gz" for name in TRACES
    )
    assert [name for name in new if not name.startswith("traces/")] == [
        f"docs/results/rehearsal/{name}.json" + "l" * (name in ("attention", "batch", "sdpa"))
        for name in (
            "attention", "batch", "decoding-qwen", "doctor", "evidence", "overhead-qwen", "processors-qwen", "sdpa"
        )
    ]  # fmt: skip
    pages = {name: after[f"docs/{name}"].decode() for name in measured.PAGES}
    assert all(f"### Rehearsal on {GPU}: no evidence\n" in text for text in pages.values())

    costs = pages["processors.md"]
    assert "| truncate | 1.00x | 0.995x | 0.50 % | 2.50 µs |" in costs
    assert "- xgrammar was left out: the package xgrammar is missing" in costs
    assert (
        "| share of a step at most 1.00 %, synchronized after each phase | qwen-grammar | 2.00 % | **missed** |"
        in costs
    )
    assert "| junk, filler and malformed 0, all valid | qwen-truncate | 0; 1 of 1 valid | reached |" in costs
    assert "| launches per step at most 1 | qwen-grammar | 6 | **missed** |" in costs
    assert "| host syncs per step 0 | qwen-grammar | 0 | reached |" in costs

    ways = pages["decoding.md"]
    assert (
        "| forced runs over no LP, at most 1.05 x (1 - share of forced tokens) | qwen, grammar | 0.500x, at most"
        in ways
    )
    assert "qwen, grammar, forced runs | 0.500x | reached |" in ways
    assert "| qwen-static-grammar | 1 |" in ways

    assert "no result within 60 s" in pages["benchmarks.md"]
    assert "Rehearsal: simulated, not measured." in after["docs/case-study.md"].decode()
    assert "| rehearsal-qwen-grammar.json.gz | " in after["traces/README.md"].decode()
    assert "| qwen | 9.10 ms | 1.01x | 1.40x | not recorded | 1.00x | 250 ns |" in pages["gpu.md"]
    assert "\n- `--part llama`: llama, llama-generic, llama-grammar, " in pages["gpu.md"]
    assert "| qwen | qwen-generic | left out | 12.5 s | no \\| time |" in pages["gpu.md"]
    assert "| sdpa-flash | ok | runs on cuda |" in pages["gpu.md"]


def test_validity_is_completed(files: Files, tmp_path: Path, root: Path) -> None:
    document = json.loads(gzip.decompress(files["qwen-grammar.json.gz"]))
    known = [(run["valid"], run["problem"]) for run in document[KEY]["molecules"]]
    for run in document[KEY]["molecules"]:
        run |= {"valid": None, "problem": None}
    unchecked = gzip.compress(json.dumps(document).encode())
    published(results_folder.write(tmp_path / "results", {**files, "qwen-grammar.json.gz": unchecked}, GPU), root)
    whole = json.loads(gzip.decompress((root / "traces/rehearsal-qwen-grammar.json.gz").read_bytes()))
    assert [(run["valid"], run["problem"]) for run in whole[KEY]["molecules"]] == known
    assert whole["traceEvents"] == document["traceEvents"]
    answers = json.loads((root / "docs/results/rehearsal/processors-qwen.json").read_text())["models"]["qwen"][3]
    assert answers["answers"][0]["valid"] is True


def test_publishing_again_gives_the_same_files(files: Files, tmp_path: Path, root: Path) -> None:
    folder = results_folder.write(tmp_path / "results", files, GPU)
    published(folder, root)
    before = tree(root)
    assert published(folder, root) == [f"nothing changed below {root}"]
    assert tree(root) == before


def test_a_part_that_ran_again_replaces_what_it_left(files: Files, tmp_path: Path, root: Path) -> None:
    published(results_folder.write(tmp_path / "first", files, GPU), root)
    again = {"qwen.json.gz": files["qwen.json.gz"]}
    said = published(results_folder.write(tmp_path / "second", again, GPU), root)
    assert "removed traces/rehearsal-qwen-grammar.json.gz: the folder has none" in said
    kept = json.loads((root / "docs/results/rehearsal/evidence.json").read_text())
    assert [sorted(run["parts"]) for run in kept["runs"]] == [["attention", "costs", "graphs", "overhead"], ["qwen"]]
    assert (root / "traces/rehearsal-qwen-static-grammar.json.gz").exists()


def test_a_large_trace_is_trimmed(files: Files, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = results_folder.write(tmp_path / "results", {"qwen.json.gz": files["qwen.json.gz"]}, GPU)
    monkeypatch.setattr(publish, "MOST_BYTES", 200_000)
    (trimmed,) = (line for line in published(folder, root) if line.startswith("trimmed"))
    assert trimmed.startswith("trimmed qwen.json.gz to steps 20 to ")
    path = root / "traces/rehearsal-qwen.json.gz"
    assert path.stat().st_size <= 200_000
    assert json.loads(gzip.decompress(path.read_bytes()))["molprof_trimmed"]["source"] == "qwen.json.gz"
    monkeypatch.setattr(publish, "MOST_BYTES", 1_000)
    before = tree(root)
    with pytest.raises(TraceError, match=r"qwen\.json\.gz has [\d.]+ kB with one step; at most 1\.00 kB are kept"):
        published(folder, root)
    assert tree(root) == before


def added(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE) -> Callable[[Path], None]:
    """Puts a member into the archive of the part overhead."""

    def change(folder: Path) -> None:
        with tarfile.open(folder / "overhead.tar", "a") as tar:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(data) if kind == tarfile.REGTYPE else 0
            member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            tar.addfile(member, io.BytesIO(data))

    return change


def replaced(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


def told(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "evidence.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def packed(name: str, data: bytes) -> Callable[[Path], None]:
    return replaced("overhead.tar", results_folder.packed({name: data}))


def costs(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Adds the part costs, its first processor changed."""

    def add(folder: Path) -> None:
        record = json.loads(results_folder.records(GPU)["processors-qwen.json"])
        change(record["models"]["qwen"][0])
        text = json.dumps(record).encode()
        (folder / "costs.tar").write_bytes(results_folder.packed({"processors-qwen.json": text}))
        parts = json.loads((folder / "evidence.json").read_text())["parts"]
        told(parts={**parts, "costs": {"seconds": 1, "steps": []}})(folder)

    return add


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "evidence.json").unlink(), r"has no evidence\.json"),
        (replaced("evidence.json", b"{"), r"evidence\.json is not JSON"),
        (told(schema=2), r"evidence\.json has schema 2; this checkout reads 1"),
        (told(parts={"x": {"seconds": 1, "steps": []}}), r"evidence\.json tells of a part 'x'"),
        (told(parts={}), r"evidence\.json does not tell of overhead\.tar"),
        (told(environment={"gpu": 7}), r"evidence\.json: environment\.gpu: expected `str \| null`, got `int`"),
        (replaced("notes.txt", b"x"), r"holds notes\.txt, which is no result"),
        (replaced("overhead.tar", b"not a tar" * 200), r"overhead\.tar cannot be read"),
        (added("../../evil.py"), r"overhead\.tar: '../../evil\.py' is no result of this part"),
        (added("overhead-llama.json", kind=tarfile.SYMTYPE), r"'overhead-llama\.json' is not a plain file"),
        (added("overhead-qwen.json"), r"'overhead-qwen\.json' is there twice"),
        (added("overhead-llama.json", b" " * 20_000_001), r"has 20,000,001 bytes; at most 20,000,000 are read"),
        (packed("overhead-qwen.json", b"[]"), r"overhead-qwen\.json has schema None; this checkout reads 1"),
        (packed("overhead-qwen.json", b'{"schema": 1}'), r"overhead-qwen\.json: missing field `model`"),
        (costs(lambda cost: cost["rounds"].clear()), r"processors-qwen\.json: none has no round or no answer"),
        (costs(lambda cost: cost.update(name="x")), r"processors-qwen\.json: qwen has no round without a proc"),
        (costs(lambda cost: cost["answers"][0].update(smiles="?")), r"no reference conformer of '\?'"),
        (packed("overhead-llama.json", b"{}"), r"'overhead-qwen' is done, but overhead\.tar has no overhead"),
        (told(environment=asdict(results_folder.environment(H100))), r"was recorded on simulated GPU .*, and evidence"),
    ],
)  # fmt: skip
def test_a_damaged_folder_gives_one_line_and_changes_nothing(
    files: Files, tmp_path: Path, root: Path, change: Callable[[Path], None], message: str
) -> None:
    folder = results_folder.write(tmp_path / "results", {"overhead-qwen.json": files["overhead-qwen.json"]}, GPU)
    change(folder)
    before = tree(root)
    with pytest.raises(MolprofError, match=message) as caught:
        published(folder, root)
    assert "\n" not in str(caught.value)
    assert tree(root) == before


@pytest.mark.parametrize(
    "data", [b"", b"no gzip", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"molprof": {"schema": 9}}', mtime=0)]
)
def test_a_damaged_trace_gives_one_line(files: Files, tmp_path: Path, root: Path, data: bytes) -> None:
    whole = files["qwen.json.gz"]
    for content in (data, whole[: len(whole) // 2]):
        folder = results_folder.write(tmp_path / str(len(content)), {"qwen.json.gz": content}, GPU)
        with pytest.raises(TraceError, match=r"^qwen\.json\.gz") as caught:
            published(folder, root)
        assert "\n" not in str(caught.value)


def test_what_is_no_evidence_of_a_gpu_is_refused(files: Files, tmp_path: Path, root: Path) -> None:
    overhead = "overhead-qwen.json"
    tiny = results_folder.write(tmp_path / "tiny", {overhead: files[overhead]}, GPU, TINY)
    with pytest.raises(TraceError, match="the folder holds results of size 'tiny'"):
        published(tiny, root, rehearsal=False)
    simulated = results_folder.write(tmp_path / "simulated", {overhead: files[overhead]}, GPU)
    with pytest.raises(TraceError, match=r"recorded on 'simulated GPU \(no device\)', which is no GPU's name"):
        published(simulated, root, rehearsal=False)
    cpu = results_folder.write(tmp_path / "cpu", {overhead: results_folder.records(None)[overhead]}, None)
    with pytest.raises(TraceError, match="the folder was recorded on a CPU"):
        published(cpu, root, rehearsal=False)
    with pytest.raises(UsageError, match="a rehearsal must not change the project"):
        published(cpu, ROOT)
    with pytest.raises(UsageError, match="has no folder traces"):
        published(cpu, tmp_path)


def test_a_gpus_results_are_called_by_its_short_name(tmp_path: Path, root: Path) -> None:
    overhead = {"overhead-qwen.json": results_folder.records(H100)["overhead-qwen.json"]}
    published(results_folder.write(tmp_path / "results", overhead, H100), root, rehearsal=False)
    assert (root / "docs/results/h100/overhead-qwen.json").exists()
    assert f"### {H100}" in (root / "docs/gpu.md").read_text()
    names = ["NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X", "NVIDIA L4", "NVIDIA GeForce RTX 4090", "A GPU", None]
    assert [short_gpu_name(name) for name in names] == ["a100", "mi300x", "l4", "4090", None, None]


def test_the_command_ends_with_one_line(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "publish.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path} has no evidence.json\n  name the folder that benchmarks/gpu.py filled\n"


@pytest.mark.parametrize("path", measured.pages(ROOT), ids=lambda path: path.name)
def test_pages_are_what_the_results_say(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == measured.pages(ROOT)[path], "run python benchmarks/measured.py"
