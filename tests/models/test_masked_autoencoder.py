"""The masked autoencoder against reference values in float64."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from models.mae_decoder import sincos_positions
from models.mae_sizes import SIZES, masked_autoencoder
from models.masked_autoencoder import MaskedAutoencoder
from models.patch_masking import masking_from_noise
from tests.conftest import SHARED

GOLDEN = SHARED / "golden" / "mae.npz"
Golden = dict[str, Tensor]


@pytest.fixture(scope="module")
def golden() -> Golden:
    if not GOLDEN.is_file():
        pytest.skip("no golden vectors beside the tree")
    with np.load(GOLDEN, allow_pickle=False) as file:
        return {name: torch.from_numpy(np.asarray(file[name])) for name in file}


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def small(norm_pix_loss: bool = False) -> MaskedAutoencoder:
    return MaskedAutoencoder(32, 8, 3, 32, 2, 4, 24, 2, 3, norm_pix_loss=norm_pix_loss).double()


def reference(golden: Golden, norm_pix_loss: bool = False) -> MaskedAutoencoder:
    model = small(norm_pix_loss)
    weights = {name[3:]: value for name, value in golden.items() if name.startswith("sd/")}
    model.load_reference_state_dict(weights)
    return model


def named_by_reference(model: MaskedAutoencoder) -> dict[str, torch.nn.Parameter]:
    named = dict(model.encoder.named_parameters())
    for name, parameter in model.decoder.named_parameters():
        named[name if name == "mask_token" else f"decoder_{name}"] = parameter
    return named


def close(value: Tensor, expected: Tensor) -> bool:
    return torch.allclose(value, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("ratio", [50, 60, 75])
@pytest.mark.parametrize("norm", [False, True])
def test_forward_equals_the_reference(golden: Golden, ratio: int, norm: bool) -> None:
    model = reference(golden, norm)
    images, noise = golden["x"], golden["noise"]
    case = f"r{ratio}_{'norm' if norm else 'raw'}"
    loss, prediction, mask = model(images, ratio / 100, noise)
    assert close(loss, golden[f"{case}/loss"])
    assert close(mask, golden[f"{case}/mask"])
    assert close(model.removed_errors(images, ratio / 100, noise).mean(), golden[f"{case}/loss"])
    if not norm:
        assert close(prediction, golden[f"{case}/pred"])
        latent, masking = model.encode_visible(images, ratio / 100, noise)
        assert close(latent, golden[f"{case}/latent"])
        assert torch.equal(masking.order.argsort(dim=1), golden[f"{case}/ids_restore"])


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("removed_only", [False, True])
def test_gradients_equal_the_reference(golden: Golden, norm: bool, removed_only: bool) -> None:
    model = reference(golden, norm)
    if removed_only:
        model.removed_errors(golden["x"], 0.75, golden["noise"]).mean().backward()  # type: ignore[no-untyped-call]
    else:
        model(golden["x"], 0.75, golden["noise"])[0].backward()
    parameters = named_by_reference(model)
    prefix = f"r75_{'norm' if norm else 'raw'}/grad/"
    names = [name for name in golden if name.startswith(prefix)]
    assert len(names) == 9
    for name in names:
        gradient = parameters[name.removeprefix(prefix)].grad
        assert gradient is not None
        assert close(gradient, golden[name])


def test_errors_per_image_equal_the_reference(golden: Golden) -> None:
    model = reference(golden)
    inputs = (golden["x"], 0.75, golden["noise"])
    assert close(model.per_image_error(*inputs), golden["r75_raw/per_sample_masked_mse"])
    assert close(
        model.per_image_error(*inputs, patches="all"), golden["r75_raw/per_sample_all_mse"]
    )


def test_patches_and_positions_equal_the_reference(golden: Golden) -> None:
    model = reference(golden)
    patches = model.patchify(golden["x"])
    assert torch.equal(patches, golden["patchify"])
    assert torch.equal(model.unpatchify(patches), golden["x"])
    for dim in (768, 512):
        rows = sincos_positions(dim, 14)[0, [0, 1, 2, 15, 16, 100, 196]]
        assert torch.allclose(rows, golden[f"pos/{dim}_14"], rtol=0, atol=1e-6)


def test_reference_names_round_trip(golden: Golden) -> None:
    weights = {name[3:]: value for name, value in golden.items() if name.startswith("sd/")}
    exported = reference(golden).reference_state_dict()
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], weights[name]) for name in weights)


def test_whole_images_are_encoded_as_by_timm(golden: Golden) -> None:
    model = reference(golden)
    tokens = model.encode(golden["x"])
    assert close(tokens, model.encoder.forward_features(golden["x"]))  # type: ignore[operator]
    blocks = model.block_features(golden["x"])
    assert len(blocks) == 2
    assert close(model.encoder.get_submodule("norm")(blocks[-1]), tokens)


def test_normalisation_is_part_of_the_model() -> None:
    model = small()
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    noise = torch.rand(2, 16)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    by_hand = model((images - mean[:, None, None]) / std[:, None, None], 0.75, noise)[0]
    model.mean.copy_(mean)
    model.std.copy_(std)
    assert close(model(images, 0.75, noise)[0], by_hand)
    assert close(model.denormalise(model.normalise(images)), images)


def test_sizes_count_the_papers_parameters() -> None:
    # Table 1: 86M, 307M, 632M (the second as counted in the ViT paper); nothing is allocated.
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in masked_autoencoder(size).encoder.parameters()) / 1e6
            for size in ("encoder_i", "encoder_ii", "encoder_iii")
        ]
        decoder = masked_autoencoder("encoder_i").decoder
    assert [round(count) for count in counts] == [86, 303, 631]
    assert len(list(decoder.blocks)) == 8
    assert SIZES["encoder_iii"]["patch_size"] == 14


@pytest.mark.parametrize("patch", [2, 4, 8])
@pytest.mark.parametrize("ratio", [0.05, 0.5, 0.99])
def test_any_patch_and_ratio(patch: int, ratio: float) -> None:
    model = MaskedAutoencoder(8, patch, 1, 16, 1, 2, 8, 3, 1)
    images = torch.rand(2, 1, 8, 8)
    num_patches = (8 // patch) ** 2
    if int(num_patches * (1 - ratio)) == 0:
        with pytest.raises(ValueError, match="patches visible"):
            model(images, ratio)
        return
    loss, prediction, mask = model(images, ratio)
    assert prediction.shape == (2, num_patches, patch**2)
    assert mask.sum(dim=1).tolist() == [num_patches - int(num_patches * (1 - ratio))] * 2
    loss.backward()
    assert bool(torch.isfinite(loss))


def test_dropout_acts_in_training_only() -> None:
    model = MaskedAutoencoder(8, 2, 1, 16, 1, 2, 8, 1, 1, encoder_dropout=0.3, decoder_dropout=0.3)
    images, noise = torch.rand(2, 1, 8, 8), torch.rand(2, 16)
    errors = [model.per_image_error(images, 0.5, noise) for _ in range(2)]
    assert not torch.equal(*errors)
    model.eval()
    errors = [model.per_image_error(images, 0.5, noise) for _ in range(2)]
    assert torch.equal(*errors)


def test_bad_arguments_are_refused(golden: Golden) -> None:
    model = small()
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    with pytest.raises(ValueError, match="mask ratio must be in"):
        model(images, 1.0)
    with pytest.raises(ValueError, match="leaves none of 16 patches visible"):
        masking_from_noise(torch.rand(1, 16), 0.999)
    with pytest.raises(ValueError, match="removes none of 16"):
        masking_from_noise(torch.rand(2, 16), 1e-17)
    with pytest.raises(ValueError, match="noise has shape"):
        model(images, 0.5, torch.rand(2, 15))
    with pytest.raises(ValueError, match="images have shape"):
        model(images[..., :16], 0.5)
    with pytest.raises(ValueError, match="patches of 5"):
        MaskedAutoencoder(32, 5, 3, 32, 2, 4, 24, 2, 3)
    with pytest.raises(ValueError, match="multiple of its 5 heads"):
        MaskedAutoencoder(32, 8, 3, 32, 2, 5, 24, 2, 3)
    with pytest.raises(ValueError, match="no size 'enormous'"):
        masked_autoencoder("enormous")
    weights = {name[3:]: value for name, value in golden.items() if name.startswith("sd/")}
    with pytest.raises(ValueError, match="not the weights of this autoencoder"):
        small().load_reference_state_dict({**weights, "fc_norm.weight": torch.ones(32)})


def test_images_of_other_channels_are_not_broadcast() -> None:
    model = small()
    for method in (model.encode, lambda images: model(images, 0.75), model.block_features):
        with pytest.raises(ValueError, match="images have 1 channels, the model 3"):
            method(torch.rand(2, 1, 32, 32))
