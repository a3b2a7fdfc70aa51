"""Inversion end to end, on a backbone whose inverse is known: the pixels themselves."""

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from artifacts.errors import InputError
from artifacts.tensors import INVERSIONS, REPRESENTATIVES, read_tensors, write_tensors
from attacks.image_search import SearchSettings
from datamodules import RepresentativesDataModule
from lightning_modules import DIPInversion
from models.deep_image_prior import PriorSettings
from models.probe import Probe
from tests.conftest import REPOSITORY, quiet, run_cli
from tests.test_spread import TWO, run_processes

SIZE = 8
DIMENSION = 3 * SIZE * SIZE
INVERT = f"--config={REPOSITORY}/configs/photos/invert.yaml"
SMALL = [
    "--model.backbone=identity",
    "--model.weights=null",
    f"--model.image_size={SIZE}",
    "--model.generator.noise_channels=4",
    "--model.search.iterations=20",
    "--model.search.judge_every=10",
    "--model.search.jitter=0",
    "--model.search.crop=1",
]


@pytest.fixture(scope="module")
def photos() -> torch.Tensor:
    """Smooth images far from the middle of all: their mean and spread matter."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(12, 3, 3, 3, generator=generator)
    return torch.nn.functional.interpolate(coarse, SIZE, mode="bilinear") * 0.5 + 0.4


@pytest.fixture(scope="module")
def folder(photos: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe on pixels, and five representatives of arbitrary norm."""
    root = tmp_path_factory.mktemp("inversion")
    probe = Probe(DIMENSION, (8,))
    probe.set_standardisation(photos.flatten(1))
    save_file(probe.state_dict(), str(root / "probe.safetensors"))
    vectors = probe.standardise(photos[:5].flatten(1)) * torch.rand(5, 1).add(0.5)
    tensors = {
        "representatives": vectors,
        "score": torch.arange(5, 0, -1).float(),
        "label": torch.tensor([1, -1, 1, -1, 1]),
    }
    write_tensors(root / "representatives.safetensors", REPRESENTATIVES, tensors, {})
    return root


def words(folder: Path, root: Path, *options: str) -> list[str]:
    return [
        "predict",
        INVERT,
        *quiet(root),
        *SMALL,
        f"--model.probe={folder}/probe.safetensors",
        f"--data.representatives={folder}/representatives.safetensors",
        *options,
    ]


def images_of(root: Path) -> torch.Tensor:
    return read_tensors(root / "inversions.safetensors", INVERSIONS)[0]["images"]


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    assert run_cli(*words(folder, root)) == 0
    return root


def test_it_writes_images_numbers_and_a_grid(whole: Path) -> None:
    merged, metadata = read_tensors(whole / "inversions.safetensors", INVERSIONS)
    assert merged["images"].shape == (5, 3, SIZE, SIZE)
    assert 0 <= float(merged["images"].min()) <= float(merged["images"].max()) <= 1
    assert metadata["config_sha256"]
    rows = json.loads((whole / "inversions.json").read_text())
    assert [row["label"] for row in rows] == [1, -1, 1, -1, 1]
    assert [row["index"] for row in rows] == list(range(5))
    assert (whole / "inversions.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((whole / "images").glob("*.png"))) == 5
    assert not list(whole.rglob("*.ckpt"))
    assert list(whole.rglob("events.out.tfevents.*"))


@pytest.mark.parametrize("space", ["standardised", "backbone"])
def test_targets_return_to_the_backbone_by_the_probe(
    space: str, folder: Path, photos: torch.Tensor
) -> None:
    """The true images have similarity 1 and loss 0; without μ and σ they would not."""

    def similarity(probe: str | None) -> torch.Tensor:
        module = DIPInversion(
            "identity",
            probe=probe,
            space=space,  # type: ignore[arg-type]
            norm="as_given",
            image_size=SIZE,
        )
        module.configure_model()
        given = Probe.from_state_dict(load_file(str(folder / "probe.safetensors")))
        target = given.standardise(photos[:5].flatten(1))
        batch = module.prepare({"index": torch.arange(5), "target": target})
        embeddings = module.backbone(photos[:5])
        return module.objective(batch, embeddings, torch.arange(5))[1]

    torch.testing.assert_close(similarity(f"{folder}/probe.safetensors"), torch.ones(5))
    assert float(similarity(None).max()) < 0.9


def test_norm_and_scale_of_targets(folder: Path, photos: torch.Tensor) -> None:
    probe = f"{folder}/probe.safetensors"
    tensors, _ = read_tensors(folder / "representatives.safetensors", REPRESENTATIVES)
    batch = {"index": torch.arange(5), "target": tensors["representatives"]}
    rescaled, given, tenth = (
        DIPInversion("identity", probe, image_size=SIZE, norm=norm, scale=scale, loss="mse")  # type: ignore[arg-type]
        for norm, scale in (("sqrt_dim", 1.0), ("as_given", 1.0), ("as_given", 0.1))
    )
    for module in (rescaled, given, tenth):
        module.configure_model()
    aim = given.prepare(batch)["aim"]
    torch.testing.assert_close(aim, batch["target"])
    torch.testing.assert_close(tenth.prepare(batch)["aim"], aim / 10)
    norms = rescaled.prepare(batch)["aim"].norm(dim=1)
    torch.testing.assert_close(norms, torch.full((5,), DIMENSION**0.5))
    # MSE sees the scale, cosine does not (A.1).
    embeddings = photos[:5].flatten(1)
    losses = [m.objective(m.prepare(batch), embeddings, torch.arange(5)) for m in (given, tenth)]
    assert bool((losses[0][0] < losses[1][0]).all())
    torch.testing.assert_close(losses[0][1], losses[1][1])


def test_long_search_finds_the_images(folder: Path, photos: torch.Tensor, tmp_path: Path) -> None:
    options = ["--model.search.iterations=150", "--data.top=2", "--model.search.averaging=0"]
    options += ["--model.search.total_variation=0", "--data.batch_size=2"]
    assert run_cli(*words(folder, tmp_path, *options)) == 0
    probe = Probe.from_state_dict(load_file(str(folder / "probe.safetensors")))
    found, truth = (probe.standardise(x.flatten(1)) for x in (images_of(tmp_path), photos))
    similarity = F.normalize(found, dim=1) @ F.normalize(truth, dim=1).T
    assert float(similarity.diag().min()) > 0.98
    assert similarity.argmax(1).tolist() == [0, 1]


def test_shares_of_an_array_and_other_batches_give_the_same(
    folder: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for first in (1, 0):
        options = [f"--data.first={first}", "--data.stride=2", "--data.batch_size=2"]
        assert run_cli(*words(folder, tmp_path, *options)) == 0
        assert (tmp_path / "inversions.safetensors").is_file() == (first == 0)
    assert "2 of 5 images" in capsys.readouterr().out
    torch.testing.assert_close(images_of(tmp_path), images_of(whole), rtol=0, atol=0.02)


@pytest.mark.parametrize("after", [1, 2])
def test_a_killed_run_continues_to_the_same_images(
    after: int,
    folder: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from attacks.image_search import ImageSearch

    advance, count = ImageSearch.advance, 0

    def dies(self: ImageSearch) -> torch.Tensor:
        nonlocal count
        count += 1
        if count > 15 + (after - 1) * 20:
            raise InputError("killed")
        return advance(self)

    often = ["--trainer.callbacks=callbacks.InversionWriter", "--trainer.callbacks.save_every=0"]
    with monkeypatch.context() as patch:
        patch.setattr(ImageSearch, "advance", dies)
        assert run_cli(*words(folder, tmp_path, *often)) == 1
    assert len(list(tmp_path.glob("search_*.ckpt"))) == 1
    assert len(list((tmp_path / "images").glob("*.png"))) == 4 * (after - 1)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("images/*")}
    count = -10_000
    with monkeypatch.context() as patch:
        patch.setattr(ImageSearch, "advance", dies)
        assert run_cli(*words(folder, tmp_path, *often)) == 0
    # 5 iterations of the batch that was interrupted, and all of the batches after it.
    assert count == -10_000 + 5 + 20 * (2 - after)
    assert all(path.stat().st_mtime_ns == time for path, time in made.items())
    assert torch.equal(images_of(tmp_path), images_of(whole))
    assert not list(tmp_path.glob("search_*.ckpt"))


def test_a_finished_run_is_not_done_again_and_not_mixed(
    folder: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(whole, tmp_path / "again"))
    before = (root / "images" / "00003.png").stat().st_mtime_ns
    assert run_cli(*words(folder, root)) == 0
    assert (root / "images" / "00003.png").stat().st_mtime_ns == before
    assert run_cli(*words(folder, root, "--model.search.jitter=1")) == 1
    assert "other settings" in capsys.readouterr().err


def test_the_attack_is_the_same_without_callbacks(folder: Path, whole: Path) -> None:
    import lightning as L

    module = DIPInversion(
        "identity",
        f"{folder}/probe.safetensors",
        image_size=SIZE,
        generator=PriorSettings(noise_channels=4, colours="decorrelated"),
        search=_settings_of(whole),
    )
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    data = RepresentativesDataModule(f"{folder}/representatives.safetensors", batch_size=4)
    batches = trainer.predict(module, data)
    assert batches is not None
    assert torch.equal(torch.cat([batch["images"] for batch in batches]), images_of(whole))  # type: ignore[call-overload]


def _settings_of(root: Path) -> SearchSettings:
    import yaml

    from attacks.image_search import NoiseSchedule

    config = yaml.safe_load((root / "config_predict.yaml").read_text())
    search = config["model"]["init_args"]["search"]
    noise = search.pop("noise")
    schedule = NoiseSchedule(tuple(noise["levels"]), tuple(noise["until"]), noise["reading"])
    return SearchSettings(**search, noise=schedule)


def test_only_the_generator_learns(folder: Path) -> None:
    module = DIPInversion("identity", f"{folder}/probe.safetensors", image_size=SIZE)
    module.configure_model()
    assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.search.iterations=0", "at least 1"),
        ("--model.search.noise.until=[0.9, 0.1]", "rise between 0 and 1"),
        ("--model.generator.num_scales=0", "at least 1"),
        ("--model.generator.colours=purple", "'decorrelated', 'bounded'"),
        ("--model.image_size=16", "features"),
        ("--model.image_size=5", "too small"),
        ("--model.backbone=nothing", "no backbone 'nothing'"),
        ("--model.scale=-1", "scale must be positive"),
        ("--data.first=7", "has 5 representatives"),
        ("--data.batch_size=0", "batch_size"),
        ("--trainer.precision=16-true", "precision"),
        ("--model.probe=nowhere.ckpt", "no probe checkpoint"),
    ],
)
def test_mistakes_are_one_line(
    option: str, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(*words(folder, tmp_path, option)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len([line for line in error.splitlines() if line.startswith("error:")]) == 1
    assert not (tmp_path / "images").exists()


@pytest.mark.slow
def test_two_processes_give_the_images_of_one(folder: Path, whole: Path, tmp_path: Path) -> None:
    """Five images, shared 3 and 2, in batches of two: none is there twice or missing."""
    done = run_processes(*words(folder, tmp_path, *TWO, "--data.batch_size=2"))
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(images_of(tmp_path), images_of(whole), rtol=1e-4, atol=1e-5)
    ours, alone = (json.loads((root / "inversions.json").read_text()) for root in (tmp_path, whole))
    assert [row["index"] for row in ours] == [row["index"] for row in alone]
    assert [row["label"] for row in ours] == [row["label"] for row in alone]


def test_more_processes_than_images_are_refused(folder: Path) -> None:
    data = RepresentativesDataModule(f"{folder}/representatives.safetensors", first=1, stride=2)
    data.trainer = SimpleNamespace(world_size=3)  # type: ignore[assignment]
    with pytest.raises(InputError, match="2 representatives cannot be shared by 3 processes"):
        data.setup("predict")


def test_a_search_ends_when_it_is_asked_to_and_keeps_its_state(
    folder: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from attacks.image_search import ImageSearch

    advance = ImageSearch.advance

    def asked(self: ImageSearch) -> torch.Tensor:
        if self.iteration == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(ImageSearch, "advance", asked)
        with pytest.raises(SystemExit) as stop:
            run_cli(*words(folder, tmp_path))
    assert stop.value.code == 143
    (state,) = tmp_path.glob("search_*.ckpt")
    config = (tmp_path / "config_predict.yaml").read_text(encoding="utf-8")
    # Other settings neither discard what was searched for, nor say that it was theirs.
    kept = state.read_bytes()
    assert run_cli(*words(folder, tmp_path, "--model.generator.colours=bounded")) == 1
    assert f"{state.name} was made with other settings" in capsys.readouterr().err
    assert state.read_bytes() == kept
    assert (tmp_path / "config_predict.yaml").read_text(encoding="utf-8") == config
    assert run_cli(*words(folder, tmp_path)) == 0
    assert "continues after iteration 7" in capsys.readouterr().out
    assert torch.equal(images_of(tmp_path), images_of(whole))
