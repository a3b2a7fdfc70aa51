"""Masks and signals against one-image, one-mask loops and scipy."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from torch import Tensor

from attacks.membership_masks import mask_noise
from attacks.membership_signals import Signals, measure_signals
from models.masked_autoencoder import MaskedAutoencoder
from models.patch_masking import masking_from_noise

RATIO = 0.7
MASKS = 7


@pytest.fixture(scope="module")
def model() -> MaskedAutoencoder:
    torch.manual_seed(0)
    built = MaskedAutoencoder(32, 8, 1, 16, 2, 2, 8, 1, 2, norm_pix_loss=True)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return built.double().eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(5, 1, 32, 32, generator=torch.Generator().manual_seed(1)).double()


@pytest.fixture(scope="module")
def noise(model: MaskedAutoencoder) -> Tensor:
    return mask_noise(MASKS, model.num_patches, RATIO, seed=3)


@pytest.mark.parametrize("rows_per_pass", [1, 10, 15, 1000])
def test_batched_signals_are_those_of_one_image_and_one_mask_at_a_time(
    model: MaskedAutoencoder, images: Tensor, noise: Tensor, rows_per_pass: int
) -> None:
    own = mask_noise(4, model.num_patches, RATIO, seed=9, complementary=False)
    signals = measure_signals(
        model, images, noise, RATIO, independent=own, rows_per_pass=rows_per_pass
    )
    for at, image in enumerate(images[:, None]):
        embeddings = []
        for number, row in enumerate(noise[:, None]):
            for patches, found in (
                ("masked", signals.masked_error),
                ("all", signals.all_error),
            ):
                expected = model.per_image_error(image, RATIO, row, patches)  # type: ignore[arg-type]
                torch.testing.assert_close(found[at, number], expected[0], rtol=1e-9, atol=1e-12)
            latent, _ = model.encode_visible(image, RATIO, row)
            embeddings.append(latent[0, 1:].mean(0).detach().numpy())
        distances = pdist(np.stack(embeddings), "cosine").mean()
        assert float(signals.dispersion[at]) == pytest.approx(distances)
        latents = [model.encode_visible(image, RATIO, row)[0].detach() for row in own[:, None]]
        distances = pdist(np.stack([x[0, 1:].mean(0).numpy() for x in latents]), "cosine").mean()
        assert float(signals.consistency[at]) == pytest.approx(distances)
    single = measure_signals(model, images, noise[:1], RATIO)
    assert single.dispersion.tolist() == [0] * 5
    assert single.consistency.shape == (5, 0)


def test_signals_of_whole_images(model: MaskedAutoencoder, images: Tensor, noise: Tensor) -> None:
    signals = measure_signals(model, images, noise, RATIO)
    torch.testing.assert_close(signals.embedding, model.encode(images)[:, 0].detach())
    first, second = model.block_features(images)
    torch.testing.assert_close(
        signals.internals,
        torch.cat([first[:, 0], first[:, 1:].mean(1), second[:, 0], second[:, 1:].mean(1)], 1),
    )
    assert signals.statistics.shape == (5, 6)
    masked_only = measure_signals(model, images, noise, RATIO, whole=False)
    assert torch.equal(masked_only.masked_error, signals.masked_error)
    assert masked_only.embedding.shape == masked_only.internals.shape == (5, 0)
    assert float(signals.statistics[2, 5]) == float(second[2].detach().max())


def test_an_image_is_measured_alike_in_any_company(
    model: MaskedAutoencoder, images: Tensor, noise: Tensor
) -> None:
    own = mask_noise(3, model.num_patches, RATIO, complementary=False)
    together = measure_signals(model, images, noise, RATIO, independent=own)
    parts = [
        measure_signals(model, part, noise, RATIO, independent=own)
        for part in torch.split(images, 2)
    ]
    apart = Signals.join(parts)
    assert len(apart) == 5
    for name, value in vars(together).items():
        torch.testing.assert_close(getattr(apart, name), value, rtol=1e-9, atol=1e-12)


def test_measuring_leaves_the_model_as_it_was(
    model: MaskedAutoencoder, images: Tensor, noise: Tensor
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    signals = measure_signals(model, images, noise, RATIO)
    assert not signals.masked_error.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.train()
    with pytest.raises(ValueError, match="evaluation mode"):
        measure_signals(model, images, noise, RATIO)
    model.eval()


@pytest.mark.parametrize(
    ("ratio", "num_masks", "times_visible"),
    [(0.75, 4, 1), (0.75, 32, 8), (0.5, 6, 3), (0.9, 16, 1)],
)
def test_complementary_masks_show_each_patch_equally_often(
    ratio: float, num_masks: int, times_visible: int
) -> None:
    noise = mask_noise(num_masks, 16, ratio)
    visible = masking_from_noise(noise, ratio).visible
    assert torch.bincount(visible.flatten(), minlength=16).tolist() == [times_visible] * 16


@pytest.mark.parametrize(("patches", "ratio"), [(16, 0.6), (49, 0.75), (196, 0.75), (7, 0.5)])
def test_complementary_masks_never_differ_by_more_than_one(patches: int, ratio: float) -> None:
    for num_masks in range(1, 12):
        noise = mask_noise(num_masks, patches, ratio, seed=num_masks)
        visible = masking_from_noise(noise, ratio).visible
        counts = torch.bincount(visible.flatten(), minlength=patches)
        assert int(counts.max() - counts.min()) <= 1
        assert all(len(set(row.tolist())) == len(row) for row in visible)


def test_masks_repeat_by_seed_and_grow_by_number() -> None:
    few, many = mask_noise(5, 16, 0.75, seed=1), mask_noise(5, 16, 0.75, seed=1)
    assert torch.equal(few, many)
    assert not torch.equal(few, mask_noise(5, 16, 0.75, seed=2))
    assert bool((mask_noise(3, 16, 0.75, complementary=False) >= 0).all())
    with pytest.raises(ValueError, match="at least 1"):
        mask_noise(0, 16, 0.75)
    for ratio in (0.999, 0.0):
        with pytest.raises(ValueError, match="of 16 patches visible and others masked"):
            mask_noise(4, 16, ratio)
