"""Evaluation of an attack: what it counts, keeps and shows."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import spearmanr
from torch import Tensor

from artifacts.errors import InputError
from artifacts.files import read_json
from artifacts.tensors import CANDIDATES, EVALUATION, read_tensors, write_tensors
from callbacks import RecoveryWriter
from datamodules.in_memory import Batch, InMemoryDataModule
from lightning_modules import ReconstructionEvaluation
from models.probe import Probe
from tests.conftest import REPOSITORY, quiet, run_cli

SIZE = 12  # Training samples, of dimension 16.


class Planted(InMemoryDataModule):
    """Random vectors with labels ±1, and a photograph of each."""

    def load(self) -> tuple[Batch, Batch]:
        """Draws both sets."""
        vectors = torch.randn(2 * SIZE, 16, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([1, -1]).repeat(SIZE)
        return (vectors[:SIZE], labels[:SIZE]), (vectors[SIZE:], labels[SIZE:])

    def train_thumbnails(self, indices: Tensor) -> Tensor:
        """Sample i is a photograph of brightness i / SIZE."""
        return (indices / SIZE).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).float()


class PlantedImages(Planted):
    """The same as grey images."""

    image_shape = (1, 4, 4)

    def load(self) -> tuple[Batch, Batch]:
        """Scales the vectors to [0, 1]."""
        sets = super().load()
        return tuple((x.sigmoid(), y) for x, y in sets)  # type: ignore[return-value]


def evaluate(root: Path, data: InMemoryDataModule, **settings: Any) -> ReconstructionEvaluation:  # noqa: ANN401
    """Evaluates candidates that are the first eight samples, disturbed more and more."""
    inputs, _ = data.train_tensors
    probe = Probe(16, (20,))
    probe.set_standardisation(inputs)
    save_file(probe.state_dict(), root / "probe.safetensors")
    noise = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    disturbed = probe.standardise(inputs[:8]) + 0.08 * torch.arange(8)[:, None] * noise
    # In the middle of the row, so that order has to be found.
    candidates = (disturbed * torch.linspace(0.5, 2, 8)[:, None]).flip(0)
    tensors = {
        "candidates": candidates.detach()[None],
        "multipliers": torch.ones(1, 8),
        "labels": torch.tensor([1, -1]).repeat(4),
        "residual": torch.zeros(1),
    }
    write_tensors(root / "candidates.safetensors", CANDIDATES, tensors, {})
    module = ReconstructionEvaluation(
        str(root / "probe.safetensors"), str(root / "candidates.safetensors"), **settings
    )
    trainer = L.Trainer(
        default_root_dir=root,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[RecoveryWriter()],
    )
    trainer.test(module, datamodule=data, verbose=False)
    return module


def test_norms_margins_and_the_best_pairs(tmp_path: Path) -> None:
    data = Planted()
    module = evaluate(tmp_path, data, num_closest=5)
    tensors, _ = read_tensors(tmp_path / "evaluation.safetensors", EVALUATION)
    train = module.probe.standardise(data.train_tensors[0])
    candidates = module.run["candidates"][0]
    unit = (x / x.norm(dim=1, keepdim=True) for x in (train, candidates))
    table = (next(unit) @ next(unit).T).numpy()
    best = np.argsort(-table.max(1))[:5]
    assert best[:3].tolist() == [0, 1, 2]
    assert tensors["closest_sample"].tolist() == best.tolist()
    assert torch.equal(tensors["closest_candidate"], candidates[table.argmax(1)[best]])
    np.testing.assert_allclose(tensors["closest_similarity"], table.max(1)[best], rtol=1e-5)
    ratio = (candidates[table.argmax(1)].norm(dim=1) / train.norm(dim=1)).numpy()
    metrics = read_json(tmp_path / "metrics.json", what="metrics", made_by="-")
    assert metrics["norm_ratio"]["median"] == pytest.approx(np.median(ratio), rel=1e-5)
    assert metrics["norm_ratio"]["quantile_0.95"] == pytest.approx(np.quantile(ratio, 0.95), 1e-5)
    margin = data.train_tensors[1] * module.probe(data.train_tensors[0]).squeeze(1)
    expected = spearmanr(table.max(1), margin.detach().numpy()).statistic
    assert metrics["margin_rank_correlation"] == pytest.approx(expected, abs=1e-6)
    # Photographs of the samples, in the order of the pairs, and no image of a candidate.
    brightness = tensors["closest_photo"].mean((1, 2, 3)) * SIZE
    torch.testing.assert_close(brightness, tensors["closest_sample"].float())
    assert "recovered_images" not in tensors
    assert "ssim" not in metrics


def test_images_are_compared_as_images(tmp_path: Path) -> None:
    evaluate(tmp_path, PlantedImages())
    tensors, _ = read_tensors(tmp_path / "evaluation.safetensors", EVALUATION)
    metrics = read_json(tmp_path / "metrics.json", what="metrics", made_by="-")
    assert "closest_photo" not in tensors
    assert tensors["recovered_images"].shape == (SIZE, 1, 4, 4)
    expected = spearmanr(tensors["similarity"], tensors["ssim"]).statistic
    found = metrics["ssim"]["recovered"]["cosine_rank_correlation"]
    assert found == pytest.approx(expected, abs=1e-6)


def test_no_attack_takes_what_evaluation_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(tmp_path, Planted())
    kept = tmp_path / "evaluation.safetensors"
    select = ["predict", f"--config={REPOSITORY}/configs/quickstart/select.yaml"]
    assert run_cli(*select, *quiet(tmp_path / "select"), f"--data.candidates={kept}") == 1
    assert "holds evaluation, not candidates" in capsys.readouterr().err
    reconstruct = ["fit", f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"]
    for option in ("--model.num_closest=40", f"--model.evaluation={kept}"):
        assert run_cli(*reconstruct, *quiet(tmp_path / "attack"), option) == 1
        assert "num_closest" in (error := capsys.readouterr().err) or "evaluation" in error
        assert run_cli(*select, *quiet(tmp_path / "select"), option) == 1
        capsys.readouterr()


def test_at_least_one_pair_is_kept() -> None:
    with pytest.raises(InputError, match="num_closest"):
        ReconstructionEvaluation("probe", "candidates", num_closest=0)
