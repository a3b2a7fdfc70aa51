"""Pre-training of a masked autoencoder: schedule, optimiser, gap, and resuming anywhere."""

import io
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from artifacts.checkpoints import AtomicCheckpointIO
from artifacts.errors import InputError
from callbacks import StepCheckpoint
from datamodules import DigitImagesDataModule, PretrainingDataModule
from lightning_modules import MAEPretraining
from lightning_modules.schedules import scaled_learning_rate, warmup_cosine
from lightning_modules.victim import load_autoencoder
from models.augmentation import random_resized_crop
from tests.conftest import REPOSITORY, SHARED, quiet, run_cli

CONFIG = f"--config={REPOSITORY}/configs/quickstart/mae.yaml"
SMALL = ["--data.images.init_args.num_test=40", "--model.depth=2", "--model.warmup_epochs=1"]
# Whatever draws random numbers in a step: crops, masks, dropout; and gradients over two batches.
RANDOM = [
    "--data.batch_size=12",
    "--model.augmentation=random_resized_crop",
    "--model.encoder_dropout=0.1",
    "--model.decoder_dropout=0.1",
    "--trainer.gradient_clip_val=1.0",
    "--trainer.max_epochs=3",
    "--trainer.check_val_every_n_epoch=1",
]
EVERY_STEP = "--trainer.callbacks+={class_path: callbacks.StepCheckpoint, init_args: {every_n_steps: 1, interval: 0}}"  # noqa: E501


def data(num_val: int | None = 20) -> PretrainingDataModule:
    images = DigitImagesDataModule(image_size=8, num_train=60, num_test=100)
    return PretrainingDataModule(images, batch_size=20, num_val=num_val)


def module(**options: Any) -> MAEPretraining:  # noqa: ANN401
    sizes: dict[str, Any] = {"patch_size": 2, "embed_dim": 32, "depth": 1, "num_heads": 2}
    given: dict[str, Any] = {"image_size": 8, "in_chans": 1, "normalisation": "none", **sizes}
    return MAEPretraining(**{**given, "warmup_epochs": 1, "augmentation": "none", **options})


def trainer(root: Path, **options: Any) -> L.Trainer:  # noqa: ANN401
    return L.Trainer(
        default_root_dir=root,
        accelerator="cpu",
        plugins=[AtomicCheckpointIO()],
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, "logger": False, "enable_checkpointing": False, **options},
    )


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return weights


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_schedule_equals_the_reference() -> None:
    path = SHARED / "golden" / "mae.npz"
    if not path.is_file():
        pytest.skip("no golden vectors beside the tree")
    with np.load(path, allow_pickle=False) as file:
        expected = file["lr_sched/lr1_e10_w4_it3"]
    ours = [warmup_cosine(step, warmup_steps=12, total_steps=30) for step in range(30)]
    assert np.allclose(ours, expected, atol=1e-12)


@pytest.mark.parametrize("given", [{}, {"betas": (0.8, 0.9)}])
def test_optimiser_follows_the_recipe(given: dict[str, Any], tmp_path: Path) -> None:
    training = module(base_learning_rate=0.256, weight_decay=0.07, **given)
    run = trainer(tmp_path, accumulate_grad_batches=2)
    run.fit(training, data())
    (optimizer,) = run.optimizers
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["betas"] == given.get("betas", (0.9, 0.95))
    assert optimizer.defaults["fused"]
    # 20 images × 2 batches × 0.256 / 256.
    assert optimizer.param_groups[0]["initial_lr"] == pytest.approx(0.04)
    decay, rest = optimizer.param_groups
    assert decay["weight_decay"] == 0.07
    assert rest["weight_decay"] == 0
    names = {id(parameter): name for name, parameter in training.named_parameters()}
    undecayed = {names[id(parameter)] for parameter in rest["params"]}
    expected = {
        name
        for name, parameter in training.named_parameters()
        if name.endswith(".bias") or ".norm" in name or "_norm" in name
    }
    assert undecayed == expected
    held = {id(parameter) for group in (decay, rest) for parameter in group["params"]}
    fixed = {name for key, name in names.items() if key not in held}
    assert fixed == {"model.encoder.pos_embed", "model.decoder.pos_embed"}


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (4, 1), (1, 3), (4, 3)])
def test_learning_rate_grows_with_the_images_of_a_step(world: int, accumulate: int) -> None:
    run: Any = SimpleNamespace(
        world_size=world,
        accumulate_grad_batches=accumulate,
        datamodule=SimpleNamespace(batch_size=32),
    )
    assert scaled_learning_rate(run, 0.5) == pytest.approx(0.5 * 32 * world * accumulate / 256)


class Steps(L.Callback):
    """Remembers what was drawn and used in each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Tensor] = []
        self.crops: list[dict[str, Any]] = []
        self.losses: list[tuple[Tensor, float, Tensor]] = []
        self.seeds: list[int] = []
        self.rates: list[float] = []

        def crop(images: Tensor, size: int, scale: Any, noise: Tensor) -> Tensor:  # noqa: ANN401
            self.crops.append({"scale": tuple(scale), "noise": noise})
            return random_resized_crop(images, size, scale, noise)

        monkeypatch.setattr("lightning_modules.mae_pretraining.random_resized_crop", crop)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, MAEPretraining)
        errors = pl_module.autoencoder.removed_errors

        def spy(images: Tensor, ratio: float, noise: Tensor) -> Tensor:
            self.losses.append((images, ratio, noise))
            self.seeds.append(torch.initial_seed())
            return errors(images, ratio, noise)

        pl_module._removed_errors = spy

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: list[Tensor], batch_idx: int
    ) -> None:
        self.batches.append(batch[0])
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def steps_of(root: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Steps:  # noqa: ANN401
    steps = Steps(monkeypatch)
    trainer(root, callbacks=[steps], max_epochs=3).fit(module(**options), data())
    return steps


def test_every_step_draws_anew_by_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "augmentation": "random_resized_crop",
        "crop_scale": [0.4, 0.6],
        "mask_ratio": 0.5,
    }
    first, again, other = (
        steps_of(tmp_path, monkeypatch, **options, seed=seed) for seed in (1, 1, 2)
    )
    for steps in (first, again, other):
        assert all(ratio == 0.5 for _, ratio, _ in steps.losses)
        assert all(crop["scale"] == (0.4, 0.6) for crop in steps.crops)
        # Of all images of all epochs no two have a mask or a crop in common.
        for drawn in ([n for _, _, n in steps.losses], [c["noise"] for c in steps.crops]):
            assert len(set(map(tuple, torch.cat(drawn).tolist()))) == 180
        assert len(set(steps.seeds)) == 9
    assert first.seeds == again.seeds
    assert not set(first.seeds) & set(other.seeds)
    for (_, _, ours), (_, _, same_noise), (_, _, theirs) in zip(
        first.losses, again.losses, other.losses, strict=True
    ):
        assert torch.equal(ours, same_noise)
        assert not torch.equal(ours, theirs)


def test_processes_seed_a_step_alike() -> None:
    """Dropout takes each one's part of the same stream (see tests/test_data_parallel.py)."""
    training, seeds = module(seed=1), []
    for rank in (0, 1):
        run: Any = SimpleNamespace(current_epoch=2, global_rank=rank)
        training._trainer = run
        training.on_train_batch_start((torch.empty(0), torch.empty(0)), 3)
        seeds.append(torch.initial_seed())
    assert seeds[0] == seeds[1]


def test_masks_of_an_evaluation_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, other, steps = module(seed=1), module(seed=2), Steps(monkeypatch)
    for one in (training, other):
        one.configure_model()
    places = torch.arange(60)
    before = training.fixed_noise(places)
    run = trainer(tmp_path, callbacks=[steps])
    run.fit(training, data())
    assert run.current_epoch == 2
    assert torch.equal(training.fixed_noise(places), before)
    assert not torch.equal(other.fixed_noise(places), before)
    # None of them is one that was trained with.
    drawn = torch.cat([before, *(noise for _, _, noise in steps.losses)])
    assert len(set(map(tuple, drawn.tolist()))) == 180


def test_images_are_normalised_as_asked() -> None:
    from torchvision.models import ViT_B_16_Weights

    training = module(in_chans=3, normalisation="imagenet")
    training.configure_model()
    expected = ViT_B_16_Weights.IMAGENET1K_V1.transforms()
    assert training.autoencoder.mean.tolist() == pytest.approx(expected.mean)
    assert training.autoencoder.std.tolist() == pytest.approx(expected.std)


def test_without_augmentation_images_are_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of(tmp_path, monkeypatch, augmentation="none")
    assert not steps.crops
    for stored, (images, _, _) in zip(steps.batches, steps.losses, strict=True):
        assert torch.equal(images, stored / 255)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_compiled_is_what_trains(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: ("compiled", function))
    training = module(compile=compiled)
    training.configure_model()
    errors = training.autoencoder.removed_errors
    assert training._removed_errors == (("compiled", errors) if compiled else errors)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_schedule_is_by_the_step(
    accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three epochs of three batches, the first of them warm-up."""
    steps = Steps(monkeypatch)
    run = trainer(tmp_path, callbacks=[steps], max_epochs=3, accumulate_grad_batches=accumulate)
    run.fit(module(base_learning_rate=0.256), data())
    peak = 0.256 * 20 * accumulate / 256
    expected = [0, 1 / 3, 2 / 3, *(0.5 * (1 + math.cos(math.pi * k / 6)) for k in range(6))]
    if accumulate == 3:
        expected = [0, 0, 0, 1, 1, 1, 0.5, 0.5, 0.5]
    assert steps.rates == pytest.approx([peak * factor for factor in expected])


def test_weights_depend_on_the_seed_alone() -> None:
    first, second, other = module(seed=1), module(seed=1), module(seed=2)
    for training in (first, second, other):
        training.configure_model()
        torch.rand(7)
    assert same(first.autoencoder.state_dict(), second.autoencoder.state_dict())
    assert not same(first.autoencoder.state_dict(), other.autoencoder.state_dict())


def test_validation_is_the_gap_under_fixed_masks(tmp_path: Path) -> None:
    training, images = module(), data(num_val=None)
    run = trainer(tmp_path)
    first = run.validate(training, images, verbose=False)[0]
    assert run.validate(training, images, verbose=False)[0] == first
    model = training.autoencoder
    errors = []
    for images_of in (images.images.train_set, images.images.test_set):
        pixels = images_of.all_pixels().float() / 255
        noise = training.fixed_noise(torch.arange(len(pixels)))
        errors.append(model.per_image_error(pixels, 0.75, noise).detach())
    train, test = errors
    assert first["val/train_loss"] == pytest.approx(float(train.mean()), rel=1e-5)
    assert first["val/test_loss"] == pytest.approx(float(test.mean()), rel=1e-5)
    assert first["val/gap"] == pytest.approx(float(test.mean() - train.mean()), abs=1e-6)
    from sklearn.metrics import roc_auc_score

    auc = roc_auc_score([1] * 60 + [0] * 100, -torch.cat([train, test]).numpy())
    assert first["val/membership_auc"] == pytest.approx(auc, abs=1e-4)


def test_bf16_leaves_the_loss_finite(tmp_path: Path) -> None:
    run = trainer(tmp_path, precision="bf16-mixed", max_epochs=2, limit_train_batches=1)
    run.fit(module(), data())
    assert bool(torch.isfinite(run.callback_metrics["train/loss"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.mask_ratio=1"], "mask_ratio must be in"),
        (["--model.size=enormous"], "there is no size 'enormous'"),
        (["--model.patch_size=5"], "patches of 5"),
        (["--model.warmup_epochs=5"], "warmup_epochs (5) must be fewer"),
        (["--model.in_chans=3"], "the images have 1 channel"),
        (["--model.normalisation=imagenet"], "is for 3 channels"),
        (["--model.weights=missing.pth"], "no masked autoencoder at missing.pth"),
        (["--model.crop_scale=[0.5, 2]"], "crop_scale must be a range"),
        (["--data=datamodules.DigitImagesDataModule"], "needs --data=datamodules.Pretraining"),
        (["--trainer.max_epochs=-1"], "set trainer.max_epochs"),
        (["--model.base_learning_rate=1e30"], "the training diverged"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli("fit", CONFIG, *quiet(tmp_path), *SMALL, "--trainer.max_epochs=3", *options) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().splitlines()[-1].startswith("error: ")


def test_a_run_stopped_before_its_encoder_is_written_writes_it_when_continued(
    tmp_path: Path,
) -> None:
    words = ["fit", CONFIG, *quiet(tmp_path), *SMALL, "--trainer.max_epochs=2"]
    assert run_cli(*words) == 0
    written = (tmp_path / "encoder.safetensors").read_bytes()
    (tmp_path / "encoder.safetensors").unlink()
    assert run_cli(*words) == 0
    assert (tmp_path / "encoder.safetensors").read_bytes() == written


def test_artifacts_of_a_training(tmp_path: Path) -> None:
    words = ["fit", CONFIG, *quiet(tmp_path), *SMALL, "--trainer.max_epochs=2"]
    assert run_cli(*words, "--trainer.check_val_every_n_epoch=1") == 0
    full = load_autoencoder(tmp_path / "checkpoints" / "last.ckpt")
    encoder = load_autoencoder(tmp_path / "encoder.safetensors")
    assert full.has_decoder
    assert not encoder.has_decoder
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(full.model.encode(images), encoder.model.encode(images))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()
    shown = DigitImagesDataModule(image_size=32, num_train=60, num_test=40)
    shown.setup()
    for name, stored in (("train", shown.train_set), ("test", shown.test_set)):
        png = events.Images(f"pictures/{name}")[-1].encoded_image_string
        grid = torch.from_numpy(np.array(Image.open(io.BytesIO(png))))[..., 0].float()
        first = stored.all_pixels()[0, 0].float()
        assert torch.allclose(grid[1:33, 1:33], first, atol=1), name
    logged = {"train/loss", "train/learning_rate", "val/train_loss", "val/test_loss", "val/gap"}
    assert logged <= set(tags["scalars"])
    # Another run may start from what this one made.
    again = ["fit", CONFIG, *quiet(tmp_path / "again"), *SMALL, "--trainer.max_epochs=2"]
    assert run_cli(*again, f"--model.weights={tmp_path}/checkpoints/last.ckpt") == 0


def test_accumulated_batches_are_one_batch(tmp_path: Path) -> None:
    """Crops and masks too; so a user may trade accumulation for devices, or for memory."""

    def trained(size: int, accumulate: int) -> dict[str, Tensor]:
        images, training = data(), module(augmentation="random_resized_crop")
        images.batch_size = size
        options: dict[str, Any] = {"precision": "64-true", "accumulate_grad_batches": accumulate}
        trainer(tmp_path, **options).fit(training, images)
        return training.autoencoder.state_dict()

    whole, parts = trained(20, 1), trained(5, 4)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-9, atol=1e-9)


class CopyCheckpoints(L.Callback):
    """Keeps each step's checkpoint, as a kill at that moment would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
        last = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        if last.is_file():
            shutil.copy(last, self.folder / f"{trainer.global_step}.ckpt")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_resumed_from_any_step_ends_the_same(tmp_path: Path, accumulate: int) -> None:
    random: dict[str, Any] = {
        "augmentation": "random_resized_crop",
        "encoder_dropout": 0.1,
        "decoder_dropout": 0.1,
    }

    def run(root: Path, checkpoint: Path | None, *callbacks: L.Callback) -> dict[str, Tensor]:
        torch.manual_seed(int(time.monotonic_ns() % 1000))  # Nothing may depend on it.
        trainer(
            root,
            max_epochs=3,
            accumulate_grad_batches=accumulate,
            gradient_clip_val=1.0,
            enable_checkpointing=True,
            callbacks=[*callbacks, StepCheckpoint(every_n_steps=1, interval=0)],
        ).fit(module(**random), data(), ckpt_path=checkpoint, weights_only=True)
        return weights_of(root / "checkpoints" / "last.ckpt")

    whole = run(tmp_path / "whole", None, CopyCheckpoints(tmp_path / "copies"))
    copies = sorted((tmp_path / "copies").iterdir())
    assert len(copies) == (8 if accumulate == 1 else 5)
    for copy in copies:
        resumed = run(tmp_path / copy.stem, copy)
        assert same(resumed, whole), copy
    seeded = module(**random)
    seeded.configure_model()
    assert not same(seeded.state_dict(), whole)


@pytest.mark.slow
def test_a_killed_training_continues_to_the_same_weights(tmp_path: Path) -> None:
    words = ["fit", CONFIG, *SMALL, *RANDOM, EVERY_STEP]
    assert run_cli(*words, *quiet(tmp_path / "whole")) == 0
    command = [sys.executable, "main.py", *words, *quiet(tmp_path / "killed")]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 300
    while not last.is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    step = torch.load(last, weights_only=True)["global_step"]
    assert step % 5 != 0, "killed at the end of an epoch: says little"
    assert run_cli(*words, *quiet(tmp_path / "killed")) == 0
    whole = weights_of(tmp_path / "whole" / "checkpoints" / "last.ckpt")
    assert same(weights_of(last), whole)


def test_pictures_fill_in_what_was_removed() -> None:
    from callbacks.mae_pictures import picture

    training = module(norm_pix_loss=True)
    training.configure_model()
    images = torch.rand(3, 1, 8, 8)
    grid = picture(training, images)
    # Three rows and columns of 8 pixels with a frame of 1; grey images come as RGB.
    assert grid.shape == (3, 28, 28)
    assert torch.equal(grid[0, 1:9, 1:9], images[0, 0])
    removed, filled = training.autoencoder.reconstruct(
        images, 0.75, training.fixed_noise(torch.arange(3))
    )
    assert removed.float().mean() == 0.75
    assert torch.equal(filled[~removed], images[~removed])
    assert torch.equal(grid[0, 10:18, 1:9] == 0.5, removed[0, 0])


def test_weights_keep_the_options_that_a_file_does_not_hold(tmp_path: Path) -> None:
    options: dict[str, Any] = {"embed_dim": 16, "depth": 1, "num_heads": 2, "decoder_embed_dim": 8}
    options |= {"decoder_depth": 1, "decoder_num_heads": 2, "patch_size": 8, "image_size": 32}
    common: dict[str, Any] = {"in_chans": 1, "normalisation": "none"}
    built = MAEPretraining(
        **options, **common, encoder_dropout=0.3, decoder_dropout=0.2, norm_pix_loss=True
    )
    built.configure_model()
    plain = MAEPretraining(**options, **common)
    plain.configure_model()
    path = tmp_path / "mae.safetensors"
    save_file(plain.autoencoder.state_dict(), path)
    loaded = MAEPretraining(
        weights=str(path),
        image_size=32,
        **common,
        encoder_dropout=0.3,
        decoder_dropout=0.2,
        norm_pix_loss=True,
    )
    loaded.configure_model()
    rates = [
        {name: m.p for name, m in module.autoencoder.named_modules() if isinstance(m, nn.Dropout)}
        for module in (built, loaded)
    ]
    assert rates[0] == rates[1]
    assert set(rates[0].values()) == {0.0, 0.2, 0.3}
    assert loaded.autoencoder.norm_pix_loss
    common |= {"weights": str(path), "image_size": 32}
    MAEPretraining(**{**options, **common}).configure_model()
    for name in ("depth", "decoder_embed_dim", "decoder_depth", "decoder_num_heads"):
        says = rf"mae.safetensors has {name}={options[name]}, model\.{name} is 12: leave it out"
        with pytest.raises(InputError, match=says):
            MAEPretraining(**{**common, name: 12}).configure_model()
    with pytest.raises(InputError, match="num_heads is 4, but the file says 2: leave it out"):
        MAEPretraining(num_heads=4, **common).configure_model()
    save_file(plain.autoencoder.encoder.state_dict(), path)
    with pytest.raises(InputError, match=r"a fresh decoder for .* has decoder_depth=8"):
        MAEPretraining(num_heads=2, decoder_depth=1, **common).configure_model()
