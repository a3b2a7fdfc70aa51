"""The shipped batch files on a real SLURM of one node, at a size that takes seconds."""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from artifacts.tensors import INVERSIONS, REPRESENTATIVES, read_tensors, write_tensors
from tests.conftest import REPOSITORY, SMALL_ATTACK, SMALL_PROBE, quiet, run_cli
from tests.slurm.cluster import Cluster, running_cluster, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

PROBE = "--config=configs/quickstart/probe.yaml"
RECONSTRUCT = "--config=configs/quickstart/reconstruct.yaml"
TWO = ("--ntasks-per-node=2",)
DDP = ("--trainer.devices=2", "--trainer.strategy=ddp")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Short: the path of munge's socket may not be long.
    root = Path(tempfile.mkdtemp(prefix="slurm"))
    root.chmod(0o755)
    try:
        with running_cluster(root, Path(sys.executable).parent) as cluster:
            yield cluster
    finally:
        shutil.rmtree(root, ignore_errors=True)


def attack(root: Path, probe: Path, *options: str) -> list[str]:
    return [RECONSTRUCT, *quiet(root), *SMALL_ATTACK, f"--model.probe={probe}", *options]


def wait_for(path: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.1)


def test_two_tasks_train_one_probe(cluster: Cluster, small_probe: Path, tmp_path: Path) -> None:
    words = ["fit", PROBE, *quiet(tmp_path), *SMALL_PROBE, *DDP]
    job = cluster.submit("stage.sbatch", *words, options=TWO)
    assert cluster.wait(job) == {"COMPLETED"}, cluster.logs()
    ours, alone = (
        torch.load(path, weights_only=True)["state_dict"]
        for path in (tmp_path / "checkpoints/last.ckpt", small_probe)
    )
    for name, value in alone.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-6)


def test_tasks_that_are_not_one_run_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    words = ["fit", PROBE, *quiet(tmp_path), *SMALL_PROBE]
    job = cluster.submit("stage.sbatch", *words, options=TWO)
    assert cluster.wait(job) == {"FAILED"}
    assert "set --ntasks-per-node to trainer.devices" in cluster.logs()
    assert not (tmp_path / "checkpoints").exists()


# Long enough to be stopped; saves only when asked to.
LONG = [
    "--model.iterations=2500",
    "--model.num_candidates=200",
    "--model.num_draws=5",
    "--trainer.callbacks+=callbacks.LastCheckpoint",
    "--trainer.callbacks.interval=100000",
]


def test_a_signal_saves_and_the_requeued_job_finishes(
    cluster: Cluster, small_probe: Path, tmp_path: Path
) -> None:
    """Two processes are stopped and continue; the result is that of one undisturbed process."""
    words = ["fit", *attack(tmp_path / "run", small_probe, *LONG)]
    job = cluster.submit("stage.sbatch", *words, *DDP, options=TWO)
    checkpoint = tmp_path / "run/checkpoints/last.ckpt"
    wait_for(checkpoint)
    first = torch.load(checkpoint, weights_only=True)["global_step"]
    cluster.run("scancel", "--signal=SIGUSR1", job)
    assert cluster.wait(job) == {"COMPLETED"}, cluster.logs()
    assert cluster.facts(job)["Restarts"] == "1"
    log = cluster.logs()
    saved = int(log.split("stopped by SIGUSR1 after epoch ")[1].split(";")[0])
    assert first <= saved < 249
    assert f"Restoring states from the checkpoint path at {checkpoint}" in log
    assert not list(tmp_path.rglob("hpc_ckpt*"))
    assert run_cli("fit", *attack(tmp_path / "undisturbed", small_probe, *LONG)) == 0
    name = "candidates.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_a_signal_before_python_listens_does_not_lose_the_job(
    cluster: Cluster, small_probe: Path, tmp_path: Path
) -> None:
    job = cluster.submit("stage.sbatch", "fit", *attack(tmp_path, small_probe))
    deadline = time.monotonic() + 60
    while "RUNNING" not in cluster.states(job) or f"{job}.0" not in cluster.run("squeue", "-s"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    cluster.run("scancel", f"--signal={signal.SIGUSR1.name}", job)
    assert cluster.wait(job) == {"COMPLETED"}, cluster.logs()
    assert cluster.facts(job)["Restarts"] == "1"
    assert (tmp_path / "candidates.safetensors").is_file()


def test_an_array_and_a_merge_equal_one_job(
    cluster: Cluster, small_probe: Path, tmp_path: Path
) -> None:
    sizes = [*SMALL_ATTACK, "--model.num_draws=7", f"--model.probe={small_probe}"]
    words = [RECONSTRUCT, *quiet(tmp_path)[1:], *sizes]
    array = ("--array=0-2",)
    job = cluster.submit("sweep.sbatch", 3, tmp_path / "sweep", *words, options=array)
    after = (f"--dependency=afterok:{job}",)
    merge = cluster.submit("merge.sbatch", tmp_path / "sweep", options=after)
    assert cluster.wait(merge) == {"COMPLETED"}, cluster.logs()
    assert run_cli("fit", RECONSTRUCT, *quiet(tmp_path / "one"), *sizes) == 0
    name = "candidates.safetensors"
    assert (tmp_path / "sweep" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_an_array_inverts_what_one_job_does(cluster: Cluster, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "representatives": torch.rand(5, 192, generator=generator),
        "score": torch.arange(5, 0, -1).float(),
        "label": torch.tensor([1, -1, 1, -1, 1]),
    }
    write_tensors(tmp_path / "representatives.safetensors", REPRESENTATIVES, tensors, {})
    words = [
        "--config=configs/photos/invert.yaml",
        *("--model.backbone=identity", "--model.weights=null", "--model.image_size=8"),
        *(
            "--model.probe=null",
            "--model.generator.noise_channels=4",
            "--model.search.iterations=20",
        ),
        *("--model.search.judge_every=10", "--model.search.jitter=0"),
        f"--data.representatives={tmp_path}/representatives.safetensors",
    ]
    array = ("--array=0-2",)
    job = cluster.submit("inversions.sbatch", 3, *words, *quiet(tmp_path / "array"), options=array)
    assert cluster.wait(job) == {"COMPLETED"}, cluster.logs()
    assert run_cli("predict", *words, *quiet(tmp_path / "one")) == 0
    found, expected = (
        read_tensors(tmp_path / run / "inversions.safetensors", INVERSIONS)[0]["images"]
        for run in ("array", "one")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_every_batch_file_is_run_or_parsed() -> None:
    tested = {
        *("stage.sbatch", "sweep.sbatch", "merge.sbatch", "pipeline.sbatch"),
        "inversions.sbatch",
    }
    assert {path.name for path in (REPOSITORY / "scripts/slurm").glob("*.sbatch")} == tested
