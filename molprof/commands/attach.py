"""`molprof attach`: a running vLLM or SGLang server, timed from here and recorded there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from molprof.commands.options import Result, make_folder, note, number_option, path_option, result_options, with_options
from molprof.commands.run_options import setting_option
from molprof.common.errors import UsageError
from molprof.common.settings import SETTINGS, VLLM, CaptureSettings

_SETTINGS = ("prompts", "count", "schema", "regex", "choices", "grammar_file", "check", "max_new_tokens", "repeats")
_HELP = {
    "count": "Take the first N prompts.  [default: all of FILE]",
    "schema": "JSON schema of the answers, sent with the prompts; it judges all.",
    "grammar_file": "Constrain to a grammar of a kind that the server takes. It judges no answer.",
    "max_new_tokens": "Most tokens of an answer.  [required]",
}


def _option(name: str) -> Callable[..., Any]:
    return setting_option(SETTINGS[name], **({"help": _HELP[name]} if name in _HELP else {}))


@click.command("attach")
@click.argument("url")
@lambda command: with_options(command, *(_option(name) for name in (*_SETTINGS, "warmup")))
@number_option("--concurrency", help="Requests at a time at most.  [default: 8, or no bound with --rate]")
@click.option(
    "--rate",
    type=float,
    metavar="R",
    help="Send R requests per second at random intervals, alike in each pass.  [default: one as another ends]",
)
@number_option("--steps", default=40, help="Steps of the server to record.")
@path_option("--trace-dir", "source", text="Folder into which the server writes its traces.", metavar="DIR")
@path_option("--traces", "folder", text="Folder for a trace of each run; requires --trace-dir.", metavar="DIR")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Another machine that may be asked. Repeatable.")
@result_options()
def command(url: str, steps: int, source: Path | None, folder: Path | None, result: Result, **options: Any) -> None:
    """Time a running vLLM or SGLang server with and without a constraint, then let it record some steps.

    URL is that of its OpenAI API, such as http://127.0.0.1:8000. All prompts are sent, --concurrency at a time or at a
    --rate: in warm-up passes, then in timed passes with and without the constraint, in turn and without the profiler.
    With --traces the server records the first steps of one more pass of each. Its profiler is off afterwards, also
    where this command is interrupted.

    \b
    Example:
      molprof attach http://127.0.0.1:8000 --prompts ask.txt --schema person.json --max-new-tokens 200 \\
        --trace-dir /tmp/vllm-traces --traces runs
    """
    if (source is None) != (folder is None):
        raise UsageError("--trace-dir and --traces belong together", hint="give both, or none")
    hosts, concurrency, rate = (options.pop(name) for name in ("hosts", "concurrency", "rate"))
    settings = CaptureSettings("served", engine=VLLM, **options)  # which takes all constraints
    if settings.prompts is None:
        raise UsageError("no prompts are given", hint="--prompts FILE")
    result.check([Path(settings.prompts)])
    if source is not None and folder is not None:
        if not source.is_dir():
            raise UsageError(f"no folder {source}", hint="--trace-dir DIR, the server's torch_profiler_dir")
        make_folder(folder, "--traces")
    from molprof.analysis.documents.served import attached_document
    from molprof.profiler.attach import Load, Recording, Server, attach
    from molprof.profiler.molecules.prompts import read_inputs

    load = Load(8 if concurrency is None and rate is None else concurrency, rate)
    read_inputs(settings)  # tells of a bad line before a server is asked
    server = Server(url, hosts)
    line = ("molprof", *sys.argv[1:])
    recording = None
    if source is not None and folder is not None:
        recording = Recording(steps, source, folder, line, result.force)
    found = attach(server, settings, load, recording, note)
    result.deliver(attached_document(server.url, found.runs, list(map(str, found.traces)), found.notes))
    if len(found.traces) > 1:
        note(f"next: molprof compare {' '.join(map(str, found.traces))}")
