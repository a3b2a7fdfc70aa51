"""Runs spread over processes and over the parts of a sweep give what one process gives."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch

import lightning_modules
from artifacts.errors import InputError
from artifacts.tensors import CANDIDATES, read_tensors, write_safetensors, write_tensors
from lightning_modules import MembershipInference, RepresentativeSelection, TrueEmbeddings
from lightning_modules.candidate_search import CandidateSearch
from lightning_modules.sharding import IndependentRanks, gather, parse_part
from tests.conftest import REPOSITORY, SMALL_ATTACK, SMALL_PROBE, quiet, run_cli

PROBE = f"--config={REPOSITORY}/configs/quickstart/probe.yaml"
RECONSTRUCT = f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"
BASELINE = f"--config={REPOSITORY}/configs/transfer_reconstruction/activation_maximisation.yaml"
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]
FIVE = ["--model.num_draws=5"]
NAME = "candidates.safetensors"


def run_processes(*words: object) -> subprocess.CompletedProcess[str]:
    """Runs a command line in a process of its own, which starts others."""
    return subprocess.run(
        [sys.executable, REPOSITORY / "main.py", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "MASTER_ADDR": "127.0.0.1"},
    )


def attack(root: Path, probe: Path, *options: str, config: str = RECONSTRUCT) -> list[str]:
    return ["fit", config, *quiet(root), *SMALL_ATTACK, f"--model.probe={probe}", *options]


@pytest.fixture(scope="module")
def undisturbed(small_probe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    assert run_cli(*attack(root, small_probe, *FIVE)) == 0
    return root / NAME


@pytest.mark.slow
def test_a_probe_trained_by_two_processes_is_the_same(small_probe: Path, tmp_path: Path) -> None:
    done = run_processes("fit", PROBE, *quiet(tmp_path), *SMALL_PROBE, *TWO)
    assert done.returncode == 0, done.stderr
    ours, alone = (
        torch.load(path, weights_only=True)
        for path in (tmp_path / "checkpoints/last.ckpt", small_probe)
    )
    assert ours["global_step"] == alone["global_step"]
    for name, value in alone["state_dict"].items():
        torch.testing.assert_close(ours["state_dict"][name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_one_process_starts_and_two_finish_an_attack(
    small_probe: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five draws, shared 3 and 2, from a checkpoint of one process: byte for byte the same."""
    words = attack(tmp_path, small_probe, *FIVE)
    assert run_cli(*words, "--trainer.max_epochs=4") == 1
    assert "stopped after 40 of 100 iterations" in capsys.readouterr().err
    done = run_processes(*words, *TWO)
    assert done.returncode == 0, done.stderr
    assert "Restoring states" in done.stderr
    assert (tmp_path / NAME).read_bytes() == undisturbed.read_bytes()
    # What two processes left, one takes up again.
    (tmp_path / NAME).unlink()
    assert run_cli(*words) == 0
    assert (tmp_path / NAME).read_bytes() == undisturbed.read_bytes()


def test_two_processes_refuse_what_they_cannot_share(
    small_probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = CandidateSearch.__subclasses__()[0](str(small_probe))  # type: ignore[call-arg]
    assert module.ddp_strategy is IndependentRanks

    class Trainer:
        datamodule = None
        world_size = 2
        strategy = object()

    module._trainer = Trainer()  # type: ignore[assignment]
    with pytest.raises(InputError, match="share the draws only with"):
        module.setup("fit")
    Trainer.strategy, Trainer.world_size = IndependentRanks(), 9
    with pytest.raises(InputError, match="8 draws cannot be shared by 9 processes"):
        module.setup("fit")


@pytest.mark.parametrize(
    "module",
    [
        RepresentativeSelection(),
        TrueEmbeddings(),
        MembershipInference("target", shadows=["shadow"], references=["reference"]),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_cannot_be_spread_is_refused(module: L.LightningModule) -> None:
    class Trainer:
        datamodule = SimpleNamespace(attacker_loaders=None)
        world_size = 2

    module._trainer = Trainer()  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"in one process: set trainer\.devices=1"):
        module.setup("predict")


def test_every_module_trains_data_parallel_or_shares_items() -> None:
    """A search whose candidates plain ddp would average is one that names its own strategy."""
    for name in lightning_modules.__all__:
        module = getattr(lightning_modules, name)
        if issubclass(module, CandidateSearch):
            assert issubclass(module.ddp_strategy, IndependentRanks)


@pytest.mark.parametrize("config", [RECONSTRUCT, BASELINE])
def test_parts_merged_are_one_run(config: str, small_probe: Path, tmp_path: Path) -> None:
    options = ["--model.num_draws=7", "--model.space=auto"]
    for index in range(3):
        part = [f"--model.part={index}/3", *options]
        words = attack(tmp_path / f"part_{index}", small_probe, *part, config=config)
        assert run_cli(*words) == 0
    assert run_cli(*attack(tmp_path / "one", small_probe, *options, config=config)) == 0
    merged, one = tmp_path / NAME, tmp_path / "one" / NAME
    assert run_cli("merge", f"--parts={tmp_path}/part_*/{NAME}", f"--output={merged}") == 0
    if config == RECONSTRUCT:
        assert merged.read_bytes() == one.read_bytes()
        return
    # The baseline takes the products of all draws at once, which are rounded by their number.
    (ours, facts), (theirs, expected) = (read_tensors(path, CANDIDATES) for path in (merged, one))
    assert facts == expected
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def diverging(small_probe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of three draws, some of which diverge as a whole."""
    root = tmp_path_factory.mktemp("diverging")
    for index in range(3):
        words = attack(root / f"part_{index}", small_probe, f"--model.part={index}/3")
        assert run_cli(*words, *DIVERGING) == 0
    return root


DIVERGING = [
    "--model.optimizer=sgd",
    "--model.init_std=[0.1, 0.2]",
    "--model.learning_rate=[1e-4, 1e8]",
]


def test_a_part_may_diverge_as_a_whole(diverging: Path, small_probe: Path, tmp_path: Path) -> None:
    assert (
        run_cli("merge", f"--parts={diverging}/part_*/{NAME}", f"--output={tmp_path / NAME}") == 0
    )
    assert run_cli(*attack(tmp_path / "one", small_probe, *DIVERGING)) == 0
    merged, facts = read_tensors(tmp_path / NAME, CANDIDATES)
    one, expected = read_tensors(tmp_path / "one" / NAME, CANDIDATES)
    assert 0 < len(merged["draw"]) < 3
    assert facts == expected
    assert torch.equal(merged["draw"], one["draw"])


def _without(root: Path) -> None:
    shutil.rmtree(root / "part_1")


def _twice(root: Path) -> None:
    shutil.copytree(root / "part_1", root / "part_again")


def _other_settings(root: Path) -> None:
    path = root / "part_1" / NAME
    tensors, metadata = read_tensors(path, CANDIDATES, as_part=True)
    metadata = {k: v for k, v in metadata.items() if not k.startswith("shape.")}
    write_tensors(path, CANDIDATES, tensors, {**metadata, "config_sha256": "0" * 64})


def _says(index: int, **facts: str) -> Callable[[Path], None]:
    """What one part says of itself is changed, by hand or by a copy from elsewhere."""

    def damage(root: Path) -> None:
        path = root / f"part_{index}" / NAME
        tensors, metadata = read_tensors(path, CANDIDATES, as_part=True)
        write_safetensors(path, tensors, {**metadata, **facts})

    return damage


def _without_diverged(root: Path) -> None:
    path = root / "part_1" / NAME
    tensors, metadata = read_tensors(path, CANDIDATES, as_part=True)
    del metadata["diverged_draws"]
    write_safetensors(path, tensors, metadata)


def _same_draws_again(root: Path) -> None:
    """A job was submitted with the wrong number, and the file renumbered by hand."""
    shutil.copy(root / "part_0" / NAME, root / "part_1" / NAME)
    _says(1, part="1/3")(root)


Tensors = dict[str, torch.Tensor]


def _changed(change: Callable[[Tensors], Tensors]) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / "part_1" / NAME
        tensors, metadata = read_tensors(path, CANDIDATES, as_part=True)
        write_safetensors(path, {**tensors, **change(tensors)}, metadata)

    return damage


def _alone(part: str) -> Callable[[Path], None]:
    """A third of the draws, of which nothing else is left, calls itself another part."""

    def damage(root: Path) -> None:
        shutil.rmtree(root / "part_1")
        shutil.rmtree(root / "part_2")
        _says(0, part=part)(root)

    return damage


def _truncated(root: Path) -> None:
    path = root / "part_1" / NAME
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without, "1 of 3 parts are missing: run the job again for part 1/3"),
        (_twice, "is part 1/3, which is there already"),
        (_other_settings, "is no part of the same run"),
        (_without_diverged, "does not say which draws it is of"),
        (_says(1, diverged_draws="[one]"), "does not say which draws it is of"),
        (_says(1, num_draws="9" * 5000), "does not say which draws it is of"),
        (_says(1, part="7/2"), "does not say which part it is"),
        (_says(1, part="0/0"), "does not say which part it is"),
        (_alone("0/9999999999"), "9999999998 of 9999999999 parts are missing"),
        (_same_draws_again, "is part 1/3 of 3 draws from 0 on: its draws"),
        (_alone("0/1"), "must be these 3, each once"),
        (_changed(lambda t: {"candidates": t["candidates"][..., 1:]}), "'candidates' differs in"),
        (_changed(lambda t: {"candidates": t["candidates"].double()}), "'candidates' differs in"),
        (_changed(lambda t: {"labels": -t["labels"]}), "'labels' differs in"),
        (_truncated, "part_1/candidates.safetensors is not a readable safetensors file"),
        (shutil.rmtree, "no files match"),
    ],
)
def test_a_merge_names_what_is_wrong(
    damage: Callable[[Path], None],
    message: str,
    diverging: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "run"
    shutil.copytree(diverging, root)
    damage(root)
    output = tmp_path / NAME
    assert run_cli("merge", f"--parts={root}/part_*/{NAME}", f"--output={output}") == 1
    assert message in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("part", ["", "1", "3/3", "-1/3", "a/b", "1/0", "1/3/5", "²/3"])
def test_parts_that_cannot_be_are_refused(part: str) -> None:
    with pytest.raises(InputError, match="part"):
        parse_part(part)


def test_alone_a_process_holds_everything() -> None:
    share = torch.arange(3)
    assert gather(share, 3) is share


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_NTASKS": "2"}, "write srun before python"),
        ({"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, "--ntasks-per-node instead of --ntasks"),
        (
            {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_NTASKS_PER_NODE": "2"},
            "set --ntasks-per-node to trainer.devices",
        ),
    ],
)
def test_slurm_tasks_that_are_not_one_run_are_refused(
    variables: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run_cli("fit", PROBE, *quiet(tmp_path), *SMALL_PROBE) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_checkpoint_that_would_load_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hpc_ckpt_1.ckpt").write_bytes(b"")
    assert run_cli("fit", PROBE, *quiet(tmp_path), *SMALL_PROBE) == 1
    assert "hpc_ckpt_1.ckpt would be loaded into any stage" in capsys.readouterr().err
