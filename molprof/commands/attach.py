"""`molprof attach`: time a running vLLM or SGLang server from here, and record there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molprof.commands.attach_windows import WindowOptions, sample_server, windows_options
from molprof.commands.command import Command
from molprof.commands.options import (
    ResultOptions,
    make_folder,
    note,
    number_option,
    path_option,
    refuse,
    result_options,
    with_options,
)
from molprof.commands.run_options import setting_option
from molprof.common.engine_settings import BACKENDS, CONSTRAINTS, VLLM
from molprof.common.errors import UsageError
from molprof.common.settings import SETTINGS, CaptureSettings

if TYPE_CHECKING:
    from molprof.profiler.attach.server import Server

_SETTINGS = ("prompts", "count", "schema", "regex", "choices", "grammar_file", "check", "max_new_tokens", "repeats")
_HELP = {
    "count": "Take the first N prompts or requests.  [default: all of FILE]",
    "schema": "JSON schema of the answers, sent with the prompts; it judges all.",
    "grammar_file": "Constrain to a grammar of a kind that the server takes. It judges no answer.",
    "max_new_tokens": "Most tokens of an answer.  [required with --prompts]",
}
_KEY = "OPENAI_API_KEY"


def _option(name: str) -> Callable[..., Any]:
    return setting_option(SETTINGS[name], **({"help": _HELP[name]} if name in _HELP else {}))


@click.command("attach", cls=Command)
@click.argument("url")
@lambda command: with_options(command, *(_option(name) for name in (*_SETTINGS, "warmup")))
@path_option(
    "--requests",
    "requests_file",
    text="In place of --prompts: bodies of the OpenAI API, one a line, or lines of its batches. What constrains them"
    " is left out of the plain run.",
)
@path_option("--against", text="The plain run in place of --requests without their constraints.")
@click.option("--body", metavar="JSON", help="Fields for all requests, but those that a line of --requests has.")
@click.option("--model", "served_model", metavar="NAME", help="Model of the server.  [default: its first]")
@click.option(
    "--api-key",
    is_flag=False,
    flag_value=_KEY,
    metavar="[VARIABLE]",
    help=f"Send the key in an environment variable.  [VARIABLE: {_KEY}]",
)
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="Tokenizer of the served model, to fill the masks of answers again.  [default: the server's folder of it]",
)
@click.option(
    "--masks",
    type=click.Choice(BACKENDS),
    help="Fill them by what the server has.  [default: the first of xgrammar, guidance, table that allows the answer]",
)
@number_option("--concurrency", help="Requests at a time at most.  [default: 8, or no bound with --rate]")
@click.option(
    "--rate",
    type=float,
    metavar="R",
    help="Send R requests per second at random intervals, alike in each pass.  [default: one as another ends]",
)
@number_option("--steps", default=40, help="Steps of the server to record.")
@number_option("--skip-steps", "skipped", help="Steps of the pass before the first recorded one; vLLM.  [default: 0]")
@path_option("--trace-dir", "source", text="Folder into which the server writes its traces.", metavar="DIR")
@path_option("--traces", "folder", text="Folder for a trace of each run; requires --trace-dir.", metavar="DIR")
@windows_options
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Another machine that may be asked. Repeatable.")
@result_options()
def command(
    url: str,
    steps: int,
    skipped: int | None,
    source: Path | None,
    folder: Path | None,
    windows: WindowOptions,
    result: ResultOptions,
    **options: Any,
) -> None:
    """Time a running vLLM or SGLang server with and without a constraint, then let it record some steps.

    URL is that of its OpenAI API, such as http://127.0.0.1:8000. All prompts are sent, --concurrency at a time or at a
    --rate: in warm-up passes, then in timed passes with and without the constraint, in turn and without the profiler.
    With --traces the server records steps of one more pass of each: the first, or those after --skip-steps. Its
    profiler is off afterwards, also where this command is interrupted.

    With --every it sends nothing: it records --steps of what the server does, now and then, adds each to the history
    in --to, and deletes the trace unless --traces keeps it.

    \b
    Examples:
      molprof attach http://127.0.0.1:8000 --prompts ask.txt --schema person.json --max-new-tokens 200 \\
        --trace-dir /tmp/vllm-traces --traces runs
      molprof attach http://127.0.0.1:8000 --every 10m --steps 20 --for 24h --trace-dir /tmp/vllm-traces --to history
    """
    if windows.every is not None:
        unsent = ("requests_file", "prompts", "concurrency", "rate", "tokenizer", "masks")
        of_requests = {name: options[name] for name in unsent}
        refuse("--every", "it sends no requests", **of_requests)
        connect = partial(_server, url, options)
        sample_server(windows, steps, source, folder, connect)
        return
    if (source is None) != (folder is None):
        raise UsageError("--trace-dir and --traces belong together", hint="give both, or none")
    names = ("hosts", "concurrency", "rate", "requests_file", "against", "body", "served_model", "api_key")
    hosts, concurrency, rate, file, against, body, model, key_name = (options.pop(name) for name in names)
    tokenizer, matcher = options.pop("tokenizer"), options.pop("masks")
    settings = _settings(options, file, against)
    result.check([Path(path) for path in (settings.prompts, file, against) if path is not None])
    more, key = _fields(body), _key(key_name)
    if source is not None and folder is not None:
        if source.exists() and not source.is_dir():
            raise UsageError(f"{source} is no folder", hint="--trace-dir DIR, the server's torch_profiler_dir")
        make_folder(folder, "--traces")
    from molprof.analysis.documents.served import attached_document
    from molprof.profiler.attach import Load, ServerRecording, attach
    from molprof.profiler.attach.replay import Matching
    from molprof.profiler.attach.requests import of_file, of_prompts
    from molprof.profiler.attach.server import Server
    from molprof.profiler.molecules.prompts import read_inputs

    load = Load(8 if concurrency is None and rate is None else concurrency, rate)
    if file is None:
        read_inputs(settings)  # tells of a bad line before a server is asked
    server = Server(url, hosts, model, key)
    requests = of_prompts(settings, server, more) if file is None else of_file(file, settings, server, more, against)
    line = ("molprof", *sys.argv[1:])
    recording = None
    if source is not None and folder is not None:
        recording = ServerRecording(steps, skipped or 0, source, folder, line, result.force)
    attached = attach(server, settings, load, requests, recording, note, Matching(tokenizer, matcher))
    result.deliver(attached_document(server.url, attached.runs, list(map(str, attached.traces)), attached.notes))
    if attached.problem is not None:
        raise attached.problem
    if len(attached.traces) > 1:
        note(f"next: molprof compare {' '.join(map(str, attached.traces))}")


def _server(url: str, options: dict[str, Any]) -> Server:
    from molprof.profiler.attach.server import Server

    return Server(url, options["hosts"], options["served_model"], _key(options["api_key"]))


def _settings(options: dict[str, Any], file: Path | None, against: Path | None) -> CaptureSettings:
    """Return the settings of the options; those of --requests are its input."""
    if file is None:
        if against is not None:
            raise UsageError("--against goes with --requests", hint="--requests FILE")
        if options["prompts"] is None:
            raise UsageError("no prompts are given", hint="--prompts FILE, or --requests FILE")
        return CaptureSettings("served", engine=VLLM, **options)  # which takes all constraints
    constraining = [name for name in ("prompts", *CONSTRAINTS) if options[name] is not None]
    if constraining:
        flag = SETTINGS[constraining[0]].flag
        raise UsageError(f"--requests have their own prompts and constraints, not those of {flag}", f"leave out {flag}")
    return CaptureSettings("served", engine=VLLM, **options)


def _fields(body: str | None) -> dict[str, Any]:
    try:
        fields = {} if body is None else json.loads(body)
    except ValueError as problem:
        raise UsageError(f"--body is no JSON: {problem}", """such as --body '{"top_p": 0.9}'""") from None
    if not isinstance(fields, dict):
        raise UsageError("--body is no JSON object", """such as --body '{"top_p": 0.9}'""")
    return fields


def _key(name: str | None) -> str | None:
    """Return the API key, which is not an option because other users and traces would show it."""
    if name is None:
        return None
    if not (key := os.environ.get(name)):
        raise UsageError(f"the environment variable {name} has no key", f"export {name}=...; --api-key takes its name")
    return key
