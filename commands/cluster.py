"""Which processes make one run: here, on several devices, or under SLURM."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lightning as L
import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from artifacts.errors import InputError

# What Lightning's launcher leaves for the processes that it starts.
_OF_THE_LAUNCHER = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")


def slurm_tasks() -> int:
    """Number of processes that SLURM started, or will start, for this job step; 1 without SLURM."""
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return 1 if interactive else int(os.environ.get("SLURM_NTASKS", "1"))


def cluster_environment() -> ClusterEnvironment:
    """Who starts the processes of a run: SLURM when it has several tasks, else Lightning.

    A requeue is the batch script's business, not Lightning's: its checkpoints in the middle of a
    step would be taken up by whatever stage runs next in the same directory.

    Raises:
        InputError: SLURM has several tasks, but started this process alone, or not by node.
    """
    tasks = slurm_tasks()
    if tasks == 1:
        return LightningEnvironment()
    if "SLURM_STEP_ID" not in os.environ:
        raise InputError(
            f"the SLURM job has {tasks} tasks, but this is its only process: write srun before "
            "python in the batch script"
        )
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise InputError("ask SLURM for --ntasks-per-node instead of --ntasks")
    return SLURMEnvironment(auto_requeue=False)


def require_one_run(trainer: L.Trainer) -> None:
    """Refuses tasks of SLURM that do not belong to one run, each of which would write the results.

    Raises:
        InputError: Tasks and devices do not fit.
    """
    tasks = slurm_tasks()
    if tasks in (1, trainer.world_size) and (tasks == 1 or trainer.num_devices * _nodes() == tasks):
        return
    raise InputError(
        f"SLURM has {tasks} tasks on {_nodes()} node(s), the run has trainer.devices="
        f"{trainer.num_devices} and trainer.num_nodes={trainer.num_nodes}: set --ntasks-per-node "
        "to trainer.devices (and --nodes to trainer.num_nodes), with --trainer.strategy=ddp"
    )


def _nodes() -> int:
    return int(os.environ.get("SLURM_NNODES", "1"))


def refuse_hpc_checkpoints(root: str | Path) -> None:
    """Refuses a run directory from which Lightning would load weights by itself.

    Under SLURM it does that in every stage without a ``ckpt_path``.

    Raises:
        InputError: There is such a file.
    """
    for path in Path(root).glob("hpc_ckpt_*.ckpt"):
        raise InputError(
            f"{path} would be loaded into any stage that runs there; delete it, or choose another "
            "--trainer.default_root_dir"
        )


def was_requeued() -> bool:
    """Whether SLURM runs this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0


@contextmanager
def group_of_processes() -> Iterator[None]:
    """Lets go of the processes of a run, so that this one can start others for the next stage."""
    before = {name: os.environ.get(name) for name in _OF_THE_LAUNCHER}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
