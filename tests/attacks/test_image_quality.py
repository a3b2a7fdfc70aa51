"""Resemblance is judged against all true images, in a centred space."""

from pathlib import Path

import pytest
import torch
import torchmetrics
from torch import Tensor
from torch.nn import functional as F
from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

from attacks.image_loss import class_loss, embedding_loss
from attacks.image_quality import lpips, resemblance


def test_own_image_against_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    # A common direction that would make any two embeddings alike.
    truth = torch.randn(30, 20, generator=generator) + 10
    own = torch.tensor([3, 7, 7])
    images = truth[own].clone()
    images[1] += 0.5 * torch.randn(20, generator=generator)
    images[2] = truth[8]
    found = resemblance(images, truth, own)
    assert float(found.similarity[0]) > 0.999
    assert 0.5 < float(found.similarity[1]) < 0.999
    assert found.rank.tolist()[:2] == [1, 1]
    assert int(found.rank[2]) > 1
    assert float(found.others.abs().max()) < 0.1
    assert float(F.cosine_similarity(truth[:1], truth[1:2])) > 0.9


def test_losses_against_torch() -> None:
    embeddings, targets = torch.randn(4, 6), torch.randn(4, 6)
    loss, similarity = embedding_loss(embeddings, targets, "mse")
    torch.testing.assert_close(loss.mean(), F.mse_loss(embeddings, targets))
    loss, again = embedding_loss(embeddings, 10 * targets, "cosine")
    torch.testing.assert_close(similarity, again)
    torch.testing.assert_close(loss, 1 - similarity)
    labels = torch.tensor([1, -1, 1, -1])
    logits = torch.randn(4, 1)
    loss, probability = class_loss(logits, labels)
    expected = F.binary_cross_entropy_with_logits(
        logits.squeeze(1), (labels > 0).float(), reduction="none"
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(probability, (-expected).exp())
    logits = torch.randn(4, 3)
    loss, probability = class_loss(logits, torch.tensor([0, 1, 2, 0]))
    torch.testing.assert_close(probability, logits.softmax(1)[range(4), [0, 1, 2, 0]])


def test_lpips_is_the_weighted_distance_of_normalised_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zhang et al. (2018), eq. 1, with random weights where a download would put them."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.manual_seed(0)
    network = squeezenet1_1(weights=None).eval()
    name = SqueezeNet1_1_Weights.DEFAULT.url.rsplit("/", 1)[1]
    torch.save(network.state_dict(), cache / name)
    first, second = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)
    found = lpips(first, second)

    folder = Path(torchmetrics.__file__).parent / "functional/image/lpips_models"
    weights = torch.load(folder / "squeeze.pth", map_location="cpu", weights_only=True)
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])

    def features(images: Tensor) -> list[Tensor]:
        x, kept = (2 * images - 1 - shift[:, None, None]) / scale[:, None, None], []
        for index, layer in enumerate(network.features):
            x = layer(x)
            if index in (1, 4, 7, 9, 10, 11, 12):
                kept.append(F.normalize(x, dim=1))
        return kept

    with torch.no_grad():
        expected = sum(
            ((a - b).square() * weights[f"lin{i}.model.1.weight"]).sum(1).mean((1, 2))
            for i, (a, b) in enumerate(zip(features(first), features(second), strict=True))
        )
    assert isinstance(expected, Tensor)
    assert float(expected.min()) > 0.01
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    assert lpips(first, first).tolist() == [0, 0]
