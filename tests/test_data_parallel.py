"""Two processes train an autoencoder, a decoder and a classifier as one process does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import REPOSITORY, quiet, run_cli

CONFIG = f"--config={REPOSITORY}/configs/quickstart/mae.yaml"
PROBE = f"--config={REPOSITORY}/configs/quickstart/mae_probe.yaml"
# 53 and 41 images: the last batch is never full, nor can it be halved.
IMAGES = [
    "--data.images.init_args.num_train=53",
    "--data.images.init_args.num_test=41",
    "--data.images.init_args.balanced=false",
]
# In double precision a sum in another order hides no mistake.
COMMON = [
    *("--trainer.precision=64-true", "--trainer.max_epochs=3", "--model.warmup_epochs=1"),
    *("--trainer.check_val_every_n_epoch=1", "--trainer.gradient_clip_val=1.0"),
    *("--model.augmentation=random_resized_crop", "--ckpt_path=null", "--seed_everything=3"),
]
AUTOENCODER = [
    *("fit", CONFIG, *COMMON, *IMAGES),
    *("--model.depth=2", "--model.embed_dim=32", "--model.num_heads=2"),
]
WITH_REST = ["--data.drop_last=false", "--trainer.accumulate_grad_batches=2"]
DROPOUT = ["--model.encoder_dropout=0.1", "--model.decoder_dropout=0.2"]
CLASSIFIER = [
    *("fit", PROBE, *COMMON, "--data.num_train=53", "--data.num_test=41", "--data.balanced=false"),
]
IN_TURN = "import json, sys, main; sys.exit(max(map(main.main, json.loads(sys.argv[1]))))"


def jobs(root: Path, encoder: Path) -> dict[str, list[str]]:
    """The command line of every training."""
    words = {
        "autoencoder": [*AUTOENCODER, *WITH_REST],
        "dropout": [*AUTOENCODER, *DROPOUT],
        "decoder": [
            *("fit", CONFIG, "--model=lightning_modules.ShadowDecoder", *IMAGES, *COMMON),
            *(*WITH_REST, f"--model.encoder={encoder}", "--trainer.callbacks=[]"),
            *("--model.decoder_depth=1", "--model.decoder_embed_dim=16"),
            *("--model.decoder_num_heads=2", "--model.base_learning_rate=0.016"),
        ],
        "linear": [*CLASSIFIER, f"--model.encoder={encoder}"],
        "fine_tuned": [*CLASSIFIER, f"--model.encoder={encoder}", "--model.frozen=false"],
    }
    return {name: [*given, *quiet(root / name)] for name, given in words.items()}


def in_two_processes(commands: list[list[str]]) -> None:
    """Runs command lines one after another in two processes, which are started but once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IN_TURN, json.dumps(commands)],
            cwd=REPOSITORY,
            env={**os.environ, **common, "NODE_RANK": "0", "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output[-3000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """All trainings by one process with batches of 16, and by two with batches of 8."""
    os.chdir(REPOSITORY)
    root = tmp_path_factory.mktemp("data_parallel")
    alone, two = root / "alone", root / "two"
    encoder = alone / "autoencoder" / "encoder.safetensors"
    for words in jobs(alone, encoder).values():
        assert run_cli(*words, "--data.batch_size=16") == 0
    spread = ["--data.batch_size=8", "--trainer.devices=2", "--trainer.strategy=ddp"]
    in_two_processes([[*words, *spread] for words in jobs(two, encoder).values()])
    return alone, two


def weights(root: Path) -> dict[str, Tensor]:
    path = root / "checkpoints" / "last.ckpt"
    state: dict[str, Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return state


def scalars(root: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(root))
    events.Reload()
    names = [name for name in events.Tags()["scalars"] if not name.startswith("peak_memory")]
    return {name: [event.value for event in events.Scalars(name)] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["autoencoder", "dropout", "decoder", "linear", "fine_tuned"])
def test_two_processes_are_one(name: str, runs: tuple[Path, Path]) -> None:
    expected, ours = (weights(root / name) for root in runs)
    for key, value in expected.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-9, atol=1e-9)
    expected_scalars, our_scalars = (scalars(root / name) for root in runs)
    assert expected_scalars.keys() == our_scalars.keys()
    assert "train/loss" in expected_scalars
    for key, values in expected_scalars.items():
        assert our_scalars[key] == pytest.approx(values, rel=1e-6, abs=1e-6), key
