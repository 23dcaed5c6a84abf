"""What `molprof run --processes` starts in each Python process: copied as `sitecustomize.py` into a folder of its own.

It imports nothing of molprof, since a program may start another Python; and torch only once the process has.

Files of a process begin with its number and the moment when it began: `PID-NS.json` says what it is and how it ended,
`PID-NS.0.json` is its trace; there are more where it forked, since the profiler is off in a fork.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import signal
import sys
import threading
import time
import warnings
from importlib.machinery import PathFinder
from typing import Any

FOLDER_VARIABLE = "MOLPROF_PROCESSES"
# Files of the folder: what is asked for; that a window begins, and that it ends.
SETTINGS_FILE, BEGIN_FILE, END_FILE = "settings", "begin", "end"
# An annotation whose name ends with the time of CLOCK_MONOTONIC, ns, at which it began.
CLOCK_MARK = "molprof.clock "
_MARKS = 3  # the first takes longer
_POLL_S = 0.02


class _ProcessRecorder:
    """The profiler of this process, from the import of torch or the beginning of the window on."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with open(os.path.join(folder, SETTINGS_FILE), encoding="utf-8") as file:
            self._settings = json.load(file)
        self._torch: Any = None
        self._others: set[int] = set()  # processes whose number torch may have kept over a fork
        self._begin()
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        atexit.register(self.write)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._resume, after_in_child=self._after_fork)
        for name in ("_exit", "execv", "execve"):
            self._write_before(name)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._running: Any = None
        self._ended: list[Any] = []
        self._was_running = self._is_own = self._closed = self._writing = False
        self._problems: list[str] = []
        self._stem = os.path.join(self._folder, f"{os.getpid()}-{time.monotonic_ns()}")
        self._note(False)

    def _note(self, ended: bool) -> None:
        try:
            with open("/proc/self/cmdline", "rb") as file:
                command = file.read().decode(errors="replace").split("\0")
        except OSError:  # not on Linux
            command = list(getattr(sys, "orig_argv", sys.argv))
        processes = sys.modules.get("multiprocessing.process")
        name = "" if processes is None else processes.current_process().name
        note = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "command": [word for word in command if word],
            "name": "" if name == "MainProcess" else name,
            "torch": self._torch is not None,
            "parts": len(self._ended),
            "ended": ended,
            "rank": self._rank(),
            "others": sorted(self._others),
            "problems": self._problems,
        }
        try:
            with open(self._stem + ".part", "w", encoding="utf-8") as file:
                json.dump(note, file)
            os.replace(self._stem + ".part", self._stem + ".json")
        except OSError:  # the folder is gone: molprof has ended
            self._closed = True

    def _rank(self) -> int | None:
        distributed = sys.modules.get("torch.distributed")
        if self._torch is None or distributed is None or not distributed.is_available():
            return None
        if distributed.is_initialized():
            return int(distributed.get_rank())
        rank = os.environ.get("RANK", "") if "LOCAL_RANK" in os.environ else ""  # of torchrun
        return int(rank) if rank.isdigit() else None

    def _write_before(self, name: str) -> None:
        """Write before a function of `os` that ends the program in this process."""
        original = getattr(os, name)

        def ending(*args: Any) -> Any:
            self.write()
            return original(*args)

        setattr(os, name, ending)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find torch as other finders do; when it has been imported, the recording begins or waits for its window."""
        if name != "torch" or self._torch is not None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def execute_and_begin(module: Any, execute: Any = execute) -> None:
                    execute(module)
                    self._imported(module)

                spec.loader.exec_module = execute_and_begin  # type: ignore[method-assign]
                return spec
        return None

    def _imported(self, torch: Any) -> None:
        self._torch = torch
        self._note(False)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._terminated)
        profile = torch.autograd.profiler.profile
        prepare = profile._prepare_trace

        def prepare_alone(program: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_own and self._running is not None:
                self._problems.append("a profiler of the program's own ran, and what came later is not recorded")
                self.stop()
            return prepare(program, *args, **kwargs)

        profile._prepare_trace = prepare_alone
        # CUDA in a process before it forks would break its children: the GPU is recorded once the program uses it.
        torch.cuda._lazy_call(self._restart)
        if self._settings["window"]:  # a first recording must not be of another thread: Kineto prints an error then
            self.start()
            self.stop()
            self._ended.clear()
        self._start_or_wait()

    def _start_or_wait(self) -> None:
        if self._settings["window"]:
            threading.Thread(target=self._wait, name="molprof", daemon=True).start()
        else:
            self.start()

    def _wait(self) -> None:
        """Record the window, whose beginning and end are files."""
        for name, act in ((BEGIN_FILE, self.start), (END_FILE, self.write)):
            while not os.path.exists(os.path.join(self._folder, name)):
                if self._closed or not os.path.exists(self._folder):
                    return
                time.sleep(_POLL_S)
            if name == BEGIN_FILE and os.path.exists(os.path.join(self._folder, END_FILE)):
                return
            act()

    def start(self) -> None:
        """Start the profiler."""
        torch = self._torch
        with self._lock:
            if self._running is not None or self._closed:
                return
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_initialized():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            what = {"with_stack": self._settings["stacks"], "record_shapes": self._settings["shapes"]}
            self._is_own = True
            try:
                every = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
                profiler = torch.profiler.profile(activities=activities, experimental_config=every, **what)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    profiler.start()
                self._running = profiler
                self._mark()
            except Exception as problem:
                self._problems.append(f"the profiler does not start: {type(problem).__name__}: {problem}")
            finally:
                self._is_own = False

    def stop(self) -> None:
        """Stop the profiler, and keep what it recorded."""
        with self._lock:
            profiler, self._running = self._running, None
            if profiler is None:
                return
            try:
                self._ended.append(profiler)
                self._mark()
                profiler.stop()
            except Exception as problem:
                self._ended.remove(profiler)
                self._problems.append(f"the profiler does not stop: {type(problem).__name__}: {problem}")

    def _mark(self) -> None:
        for _ in range(_MARKS):
            with self._torch.profiler.record_function(CLOCK_MARK + str(time.monotonic_ns())):
                pass

    def _restart(self) -> None:
        if self._running is not None:
            self.stop()
            self.start()

    def write(self) -> None:
        """Stop the profiler, and write all that this process recorded; once."""
        with self._lock:
            if self._closed:
                return
            self._closed = self._writing = True
            self.stop()
            for number, profiler in enumerate(self._ended):
                try:
                    profiler.export_chrome_trace(f"{self._stem}.{number}.part.json")
                    os.replace(f"{self._stem}.{number}.part.json", f"{self._stem}.{number}.json")
                except Exception as problem:
                    self._problems.append(f"its trace is not written: {type(problem).__name__}: {problem}")
            self._note(True)
            self._writing = False

    def _terminated(self, number: int, frame: object) -> None:
        """End as the signal would have ended the process, with its trace written."""
        if not self._writing:
            self.write()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _before_fork(self) -> None:
        self._lock.acquire()
        self._was_running = self._running is not None
        self.stop()

    def _resume(self) -> None:
        self._lock.release()
        if self._was_running:
            self.start()

    def _after_fork(self) -> None:
        self._others.add(os.getppid())
        was_running = self._was_running
        self._begin()
        if was_running or (self._torch is not None and self._settings["window"]):
            self._start_or_wait()


def _others_customize(folder: str) -> None:
    """Run the `sitecustomize` that this one stands before."""
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != folder])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def install() -> None:
    """Begin in this process what the folder in the environment asks for."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if os.path.exists(os.path.join(folder, SETTINGS_FILE)):
        _ProcessRecorder(folder)
    _others_customize(folder)


if __name__ == "sitecustomize":
    install()
