"""Pipelines that can be killed and started again without the seconds that imports take."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import REPOSITORY

# A process that stays: a fork of it is a start without the imports.
PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
import main, callbacks, datamodules, lightning_modules, commands.cli, commands.pipeline
import commands.report, reporting.figures, sklearn.datasets, tensorboard, timm, torch
torch.set_num_threads(1)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        os._exit(main.main(["pipeline", "--config", line.strip()]))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class PipelineServer:
    """Starts pipelines, one at a time.

    Args:
        log: File for what they say.
    """

    def __init__(self, log: Path) -> None:
        self.log = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def _number(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def run(self, config: Path, kill_when: Callable[[float], bool] = lambda spent: False) -> int:
        """Runs a pipeline, kills it when told to, and returns its exit code.

        Args:
            config: The pipeline.
            kill_when: Asked again and again with the seconds that the process has computed for,
                which other work on the machine does not change.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{config}\n")
        self.process.stdin.flush()
        child = self._number()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It ended by itself.
            while not kill_when(_seconds(child)):
                time.sleep(0.002)
            os.kill(child, signal.SIGKILL)
        return self._number()

    def close(self) -> None:
        """Ends the server."""
        self.process.kill()
        self.process.wait()
        self.log.close()


def _seconds(process: int) -> float:
    """Seconds that a process has computed for; see proc(5)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
