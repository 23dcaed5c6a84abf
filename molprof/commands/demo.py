"""`molprof demo`: both presets with and without the logits processor, compared on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from molprof.analysis.reader import Reading
from molprof.api import compare, reports
from molprof.commands.command import Command
from molprof.commands.options import ResultOptions, engine_options, folder_option, make_folder, note, number_option
from molprof.commands.progress import ProgressPrinter
from molprof.common.errors import UsageError
from molprof.common.files import check_output, replacing
from molprof.common.memory import let_threads_sleep
from molprof.common.text import escaped

# Trace name -> (preset, constrained). The first is what the others are compared with.
RUNS = {
    "llama": ("llama", False),
    "llama-lp": ("llama", True),
    "qwen": ("qwen", False),
    "qwen-lp": ("qwen", True),
}


@click.command("demo", cls=Command)
@folder_option("Folder for the traces.", default=Path("molprof-demo"), show_default=True)
@number_option("-n", "count", default=4, help="Molecules per run, the smallest first.")
@number_option("--repeats", default=5, help="Timed passes per run.")
@click.option("--force", is_flag=True, help="Replace traces of an earlier demo in DIR.")
@engine_options
def command(folder: Path, count: int, repeats: int, force: bool, native_path: str | None) -> None:
    """Capture both presets with and without a logits processor (LP), and compare the four runs.

    Takes about a minute on two CPU cores; uses a GPU if there is one. The traces stay in DIR.

    \b
    Examples:
      molprof demo
      molprof demo -n 32 -o big-demo
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a directory", hint="name another with -o DIR")
    paths = {name: folder / f"{name}.json.gz" for name in RUNS}
    for path in paths.values() if folder.exists() else ():
        check_output(path, force)
    let_threads_sleep()
    from molprof.analysis.documents.demo import demo_document
    from molprof.common.settings import LP_PROCESSOR, CaptureSettings
    from molprof.profiler.capture.capture import capture_together
    from molprof.profiler.molecules.prompts import short_molecules
    from molprof.profiler.recording.tracefile import OutputFile, trace_stem

    make_folder(folder)  # only now, so that a missing package leaves no empty one
    molecules = folder / "molecules.smi"
    with replacing(molecules) as part:
        part.write_text("".join(f"{smiles}\n" for smiles in short_molecules(count)))
    runs_to_make = [
        (
            CaptureSettings(
                model=preset,
                processor=LP_PROCESSOR if constrained else None,
                smiles=str(molecules),
                count=count,
                batch_size=count,
                repeats=repeats,
                # The pass that counts what the processor masks warms up the model for both of its runs.
                warmup=int(constrained),
            ),
            OutputFile(paths[name], force, ("molprof", *sys.argv[1:])),
        )
        for name, (preset, constrained) in RUNS.items()
    ]
    with ProgressPrinter() as progress:
        for result in capture_together(runs_to_make, progress):
            for line in result.notes:
                progress.line(escaped(f"{trace_stem(result.path.name)}: {line}"))
    note("reading the four traces")
    runs = dict(zip(RUNS, reports(list(paths.values()), Reading(native_path, cached=True)), strict=True))
    pairs = [compare(runs[preset], runs[f"{preset}-lp"]) for preset in ("llama", "qwen")]
    ResultOptions().deliver(
        demo_document(compare(*runs.values()), pairs, {name: str(path) for name, path in paths.items()})
    )
