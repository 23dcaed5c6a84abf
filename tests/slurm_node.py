"""A real Slurm of one node, in a folder of its own: its daemons, its key, its ports."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")
_CONF = """\
ClusterName=molprof
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
# As many processors as the tests like, whatever the machine has.
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=normal Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> list[str]:
    """The programs that are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@dataclass
class SlurmNode:
    """The daemons, each a child of this process."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self) -> None:
        """Starts all daemons and waits until the node takes jobs."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        controller_port, node_port = _free_ports(2)
        host = socket.gethostname().split(".")[0]
        self.conf.write_text(
            _CONF.format(
                folder=self.folder,
                host=host,
                user=getpass.getuser(),
                controller_port=controller_port,
                node_port=node_port,
            )
        )
        os.environ["SLURM_CONF"] = str(self.conf)
        self._run(
            "munged",
            "--foreground",
            "--force",
            *(f"--{name}={self.folder}/munge.{end}" for name, end in (("socket", "sock"), ("key-file", "key"))),
            *(f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "log", "seed")),
        )
        _wait((self.folder / "munge.sock").exists, "munged")
        self.start_controller()
        self._run("slurmd", "-D")
        _wait(lambda: "idle" in _said("sinfo", "--noheader", "--format=%T"), "slurmd")

    def start_controller(self) -> None:
        """The scheduler itself; after it was killed, with the state that it had saved."""
        self._run("slurmctld", "-D")
        _wait(lambda: " UP" in _said("scontrol", "ping"), "slurmctld")

    def kill_controller(self, job: str) -> None:
        """As a machine that loses its power, when its disk has what is now known of the Slurm job."""
        _said("scontrol", "update", f"jobid={job}", "comment=on-disk")
        _wait(lambda: b"on-disk" in (self.folder / "state/job_state").read_bytes(), "the saved state")
        process = self.processes.pop("slurmctld")
        process.kill()
        process.wait()

    def stop(self) -> list[str]:
        """Ends all jobs and daemons; the command lines of processes that are left, which should be none."""
        if "slurmctld" in self.processes:
            _said("scancel", "--user", getpass.getuser())
            with contextlib.suppress(TimeoutError):
                _wait(lambda: not _said("squeue", "--noheader").strip(), "scancel")
        for name in ("slurmd", "slurmctld", "munged"):
            if process := self.processes.pop(name, None):
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        os.environ.pop("SLURM_CONF", None)
        with contextlib.suppress(TimeoutError):  # the steps' own managers end a moment after their jobs
            _wait(lambda: not self._left(), "slurmstepd", 10.0)
        left = self._left()
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return list(left.values())

    def _left(self) -> dict[int, str]:
        """Processes of this Slurm and of its jobs, told by their environment or command line."""
        own, variable = os.fsencode(self.folder), b"SLURM_CONF=" + os.fsencode(self.conf)
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if line and (own in line or variable in (entry / "environ").read_bytes()):
                    found[int(entry.name)] = line.replace(b"\0", b" ").decode("utf-8", "replace")
        return found

    def _run(self, name: str, *arguments: str) -> None:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        program = shutil.which(name, path=path)
        assert program is not None
        with (self.folder / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except subprocess.TimeoutExpired:
        return ""


def _wait(condition: object, what: str, limit_s: float = 30.0) -> None:
    """Waits for another program, which has no other way to say that it is ready."""
    until = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > until:
            raise TimeoutError(f"{what} is not ready after {limit_s:g} s")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports
