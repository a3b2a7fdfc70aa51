"""A throw-away SLURM cluster of one node, on this machine."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

PROGRAMS = ("sbatch", "srun", "scontrol", "slurmctld", "slurmd", "munged")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
ReturnToService=2
MinJobAge=3600
KillWait=2
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=cpu Nodes=one Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """What is missing for a cluster on this machine, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]
    if missing:
        return f"SLURM is not installed: no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "a SLURM cluster of its own needs root"
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return "the machine does not know its own host name"
    return None


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        root: Its files.
        environment: For commands that use it.
    """

    root: Path
    environment: dict[str, str]

    def run(self, *words: object) -> str:
        """Runs a command to its end and returns what it printed."""
        return subprocess.run(
            [str(word) for word in words],
            check=True,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=REPOSITORY,
            timeout=60,
        ).stdout.strip()

    def submit(self, script: str, *words: object, options: tuple[str, ...] = ()) -> str:
        """Submits one of the shipped batch files and returns the job's number."""
        log = self.root / f"log-{script.split('.')[0]}-%j.txt"
        fixed = (f"--output={log}", "--cpus-per-task=1", *options)
        path = REPOSITORY / "scripts" / "slurm" / script
        return self.run("sbatch", "--parsable", *fixed, path, *words)

    def facts(self, job: str) -> dict[str, str]:
        """What SLURM says about a job (of an array: about its first task)."""
        words = self.run("scontrol", "show", "job", job).split("\n\n")[0].split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def states(self, job: str) -> set[str]:
        """States of a job, or of all tasks of an array."""
        text = self.run("scontrol", "--oneliner", "show", "job", job)
        return {word[9:] for word in text.split() if word.startswith("JobState=")}

    def wait(self, job: str, seconds: float = 240) -> set[str]:
        """Waits until nothing of a job is left to run, and returns the states."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            states = self.states(job)
            if not states & {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"}:
                return states
            time.sleep(0.3)
        raise AssertionError(f"job {job} did not end: {self.states(job)}\n{self.logs()}")

    def logs(self) -> str:
        """What all jobs wrote."""
        return "\n".join(p.read_text(errors="replace") for p in sorted(self.root.glob("log-*")))


@contextmanager
def running_cluster(root: Path, bin_directory: Path) -> Iterator[Cluster]:
    """Starts a cluster of one node with 8 CPUs in ``root``; stops it at the end."""
    for name in ("state", "spool"):
        (root / name).mkdir()
    key = root / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    port = _free_port()
    config = root / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    text = CONFIG.format(host=host, root=root, port=port, node_port=_free_port())
    config.write_text(text, encoding="utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
        "SLURM_CONF": str(config),
        "PATH": f"{bin_directory}:{SYSTEM_PATH}",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "AFTERIMAGE": str(REPOSITORY),
    }
    cluster = Cluster(root, environment)
    try:
        cluster.run(
            "munged",
            f"--socket={root}/munge.socket",
            f"--key-file={key}",
            f"--pid-file={root}/munged.pid",
            f"--log-file={root}/munged.log",
            f"--seed-file={root}/munged.seed",
            "--num-threads=2",
            "--force",
        )
        for daemon in (("slurmctld", "-f", config), ("slurmd", "-f", config, "-N", "one")):
            subprocess.run(
                [str(word) for word in daemon],
                check=True,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=60,
            )
        deadline = time.monotonic() + 30
        while cluster.run("sinfo", "-h", "-o", "%T") != "idle":
            assert time.monotonic() < deadline, (root / "slurmd.log").read_text()
            time.sleep(0.2)
        yield cluster
    finally:
        with suppress(subprocess.SubprocessError):
            cluster.run("scancel", "--user=root")
        time.sleep(0.5)
        for name in ("slurmd", "slurmctld", "munged"):
            _end(root / f"{name}.pid")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(pid_file: Path) -> None:
    if not pid_file.is_file():
        return
    pid = int(pid_file.read_text())
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
