"""`molprof run`: a script or module as `__main__` of this process, recorded from its first call of `generate` on.

torch and transformers are imported by the program, when it wants them: until then this module imports neither.
"""

from __future__ import annotations

import io
import json
import os
import resource
import runpy
import shlex
import signal
import sys
import threading
import time
import traceback
import types
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.common import live
from molprof.common.errors import MolprofError, missing_extra
from molprof.common.text import escaped
from molprof.common.values import bytes_text, time_text
from molprof.profiler.recording.interrupts import trim

if TYPE_CHECKING:
    from molprof.profiler.recording.recording import Recording

_GENERATES = "transformers.generation.utils"
# Less CPU time of child processes is of small tools that a program calls.
_LEAST_CHILDREN_S = 0.5
# Removes the folder that `python -c` looks for modules in first: the program's own is to stand there.
_LAUNCHER = "import sys; sys.path.pop(0); from molprof.profiler.recording.script import main; main()"


def replace_process(settings: dict[str, Any], arguments: Sequence[str]) -> None:
    """Replace this process by the program's: its number, its streams and its exit code are the program's own.

    settings: `output`, `force`, `chosen`, `command`; `module`: the first argument is one; `without`: its processors are
    switched off; `timed`: nothing is recorded, and what was timed goes to this file; `quiet`: molprof prints nothing;
    the options of `Recording`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Ctrl-C waits until `main` can tell of it: Python that begins would print where it was.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    os.execv(sys.executable, command_line({**settings, "unblocks": signal.SIGINT not in before}, arguments))


def command_line(settings: dict[str, Any], arguments: Sequence[str]) -> list[str]:
    """Return the command line of a process that runs the program, as `replace_process` does."""
    # What Python was started with, such as -O or -X importtime.
    flags = [item for item in sys.orig_argv[1:] if item.startswith(("-O", "-X", "-W", "-B", "-E", "-u"))]
    return [sys.executable, *flags, "-c", _LAUNCHER, json.dumps(settings), *arguments]


def main() -> None:
    """Run the program that `replace_process` names, and end as it does."""
    settings, arguments = json.loads(sys.argv[1]), sys.argv[2:]
    program = _RecordedProgram(settings)
    code, number = 0, 0
    try:
        if settings.get("unblocks"):
            with program.working("interrupted before the program began"):
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        with program:
            _run(arguments, settings["module"])
            _join_threads()
    except SystemExit as end:
        code = _exit_code(end)
    except _Terminated as ended:
        code, number = 1, ended.number
    except BaseException as problem:
        if problem is not program.interrupt:  # that came while molprof worked, which its line tells
            trim(problem)
            sys.excepthook(type(problem), problem, problem.__traceback__)
        code, number = 1, signal.SIGINT if isinstance(problem, KeyboardInterrupt) else 0
    try:
        program.tell()
    except KeyboardInterrupt:
        number = signal.SIGINT
    if number:  # as Python ends, so that a shell's loop ends too
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(code)


class _Terminated(BaseException):
    """A signal that would have ended the process while it wrote the trace."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def _terminations_raised() -> Iterator[None]:
    """Raise _Terminated in the block for a signal that ends the process, such as a batch system's; no file is left."""

    def end(number: int, frame: types.FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # of a second one
        raise _Terminated(number)

    changed = [item for item in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(item) is signal.SIG_DFL]
    try:
        for number in changed:
            signal.signal(number, end)
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


class _RecordedProgram:
    """The recording of a program, from its first call of `generate` or its first step on."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._recording: Recording | None = None
        self._original: Callable[..., Any] | None = None
        self._owner: Any = None  # the class whose `generate` waits for its first call
        self._lines: list[str] = []
        self._began_ns = time.perf_counter_ns()
        self._children_s = _children_s()
        self.interrupt: BaseException | None = None  # that came while molprof worked

    @contextmanager
    def working(self, said: str) -> Iterator[None]:
        """Hold back interrupts in the block, while molprof works; `said`: the line about an interrupt."""
        try:
            yield
        except (KeyboardInterrupt, _Terminated) as problem:
            self.interrupt, self._lines = problem, [said]
            raise

    def __enter__(self) -> None:
        if self._settings["full"]:
            self._begin()
            return
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        live.begin_with(self._begin)

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> None:
        with self.working("interrupted while the trace was written: none is written"), _terminations_raised():
            self._end(problem)

    def _end(self, problem: BaseException | None) -> None:
        """Write the recording; `problem`: the error that ended the program."""
        self._leave_alone()
        ended_ns = time.perf_counter_ns()
        self._stack.close()
        if self._recording is None:
            self._lines = self._lines or [_nothing(_children_s() - self._children_s)]
            return
        early = problem is not None and not (isinstance(problem, SystemExit) and problem.code in (None, 0))
        said = f"{type(problem).__name__}: {problem}" if early else None
        try:
            if self._settings.get("timed"):
                if (timed := self._recording.timed(said)) is not None:
                    timed.write(Path(self._settings["timed"]))
                return
            self._recording.write(said)
        except MolprofError as error:
            self._lines += [f"error: {error}", *([f"  {error.hint}"] if error.hint else [])]
            return
        except Exception:
            self._lines.append(f"this is a bug in molprof; please report it:\n{traceback.format_exc()}")
            return
        self._lines += self._written(ended_ns)

    def tell(self) -> None:
        """Print the summary of the recording, below the program's output."""
        for line in () if self._settings.get("quiet") else self._lines:
            sys.stderr.write(f"molprof: {escaped(line)}\n")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return, for the module that has `generate`, a loader after which the method waits for its first call.

        A finder, since the program is to import transformers itself, if and when it does. `wrapt.when_imported` has one
        too, which stays after the first call, and wraps the module's loader.
        """
        if name != _GENERATES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_wait(module: types.ModuleType) -> None:
                execute(module)
                self._wait(module)

            spec.loader.exec_module = execute_and_wait  # type: ignore[method-assign]
        return spec

    def _wait(self, module: types.ModuleType) -> None:
        owner = getattr(module, "GenerationMixin", None)
        if owner is None:  # of another transformers than molprof knows, which records nothing
            return
        self._owner, original = owner, owner.generate
        self._original = original

        @wraps(original)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            self._begin()
            return owner.generate(model, *args, **kwargs)

        owner.generate = generate

    def _leave_alone(self) -> None:
        """Remove the hooks that wait for a first call."""
        live.begin_with(None)
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # type: ignore[arg-type]
        if self._original is not None:
            self._owner.generate = self._original
            self._original = None

    def _begin(self) -> None:
        try:
            with self.working("interrupted when the recording began: nothing is recorded"):
                self._begin_recording()
        except MolprofError as problem:
            self._lines += [f"nothing is recorded: {problem}", *([f"  {problem.hint}"] if problem.hint else [])]
        except Exception as problem:
            self._lines.append(f"nothing is recorded: {type(problem).__name__}: {problem}")

    def _begin_recording(self) -> None:
        began_ns = time.perf_counter_ns()
        with _begins:
            if self._recording is not None:  # another thread began it
                return
            self._leave_alone()
            try:
                from molprof.profiler.environment import check_versions
                from molprof.profiler.recording.clock import StepPlan
                from molprof.profiler.recording.recording import WHAT, Recording
                from molprof.profiler.recording.tracefile import OutputFile
            except ModuleNotFoundError as problem:
                if (missing := missing_extra(problem.name or "", "recording")) is None:
                    raise
                self._lines += [f"nothing is recorded: {missing}", f"  {missing.hint}"]
                return

            check_versions()
            settings = self._settings
            path, command = Path(settings["output"]), tuple(settings["command"])
            output = OutputFile(path, settings["force"], command, settings["chosen"])
            window = settings["window"]
            steps = None if window is None else tuple(window)
            plan = StepPlan(settings["call"], steps, records=not settings.get("timed"), full=settings["full"])
            what = {name: settings[name] for name in sorted(WHAT)}
            recording = Recording(output, None, plan, settings["functions"], **what)
            recording.switched_off = {} if settings.get("without") else None
            self._stack.enter_context(recording.listening())
            self._recording = recording
            recording.began(self._began_ns, time.perf_counter_ns() - began_ns)

    def _written(self, ended_ns: int) -> list[str]:
        recording = self._recording
        assert recording is not None
        assert recording.path is not None
        write_ns, took_ns = time.perf_counter_ns() - ended_ns, ended_ns - self._began_ns
        size = bytes_text(recording.path.stat().st_size)
        is_asked = recording.path == Path(self._settings["output"])
        shown = self._settings["shown"] if is_asked else str(recording.path)
        share = "the profiler ran all the time"
        if recording.own_ns is not None:
            share = f"{time_text(recording.own_ns)} of it molprof's own work, which no time in the trace contains"
        return [
            f"the program took {time_text(took_ns)}, {share}; writing the trace took {time_text(write_ns)}",
            *recording.summary(),
            *recording.notes,
            f"wrote {shown} ({size}); next: molprof report {shlex.quote(shown)}",
        ]


_begins = threading.RLock()


def _children_s() -> float:
    """Return CPU time of the child processes that have ended, s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _nothing(children_s: float) -> str:
    """Return why nothing was recorded; children_s: CPU time of the program's child processes."""
    called = "the program called neither transformers' generate nor molprof.step()"
    if children_s < _LEAST_CHILDREN_S:
        loop = "put `with molprof.step():` around each step of a loop of your own"
        return f"nothing is recorded: {called}; {loop}, or record all: molprof run --full"
    block = 'with molprof.record(f"rank{rank}.json.gz", window="auto"):'
    return (
        f"nothing is recorded: {called} in its own process. Its child processes took {children_s:.3g} s of CPU time: "
        f"to record what they generate, put it in a block `{block}` in the function that they run, with a file for each"
    )


def _run(arguments: Sequence[str], module: bool) -> None:
    name = arguments[0]
    sys.argv = list(arguments)
    if module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    if os.path.isdir(name) or zipfile.is_zipfile(name):
        runpy.run_path(name, run_name="__main__")
        return
    sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
    name = os.path.abspath(name)  # as Python has it in tracebacks
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=name, __builtins__=__builtins__, __loader__=SourceFileLoader("__main__", name))
    sys.modules["__main__"] = main
    with io.open_code(name) as file:
        code = compile(file.read(), name, "exec")
    exec(code, main.__dict__)


def _join_threads() -> None:
    """Wait for the program's threads, as Python does at its end."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _exit_code(end: SystemExit) -> int:
    """Return the exit code that Python would end with; a code that is no number is printed."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1
