"""Random numbers of a sample do not depend on what else is in its batch or process."""

import pytest
import torch
from scipy.stats import kstest
from torch import nn

from models.masked_autoencoder import MaskedAutoencoder
from models.sample_noise import sample_noise
from models.shared_dropout import SharedDropout


def test_noise_is_of_the_position_alone() -> None:
    whole = sample_noise(5, (0, 3), torch.arange(40), 13)
    assert whole.shape == (40, 13)
    for positions in (torch.arange(7, 40, 3), torch.tensor([39, 2, 2]), torch.tensor([11])):
        assert torch.equal(sample_noise(5, (0, 3), positions, 13), whole[positions])


def test_noise_is_uniform_and_never_repeated() -> None:
    tables = [
        sample_noise(seed, place, torch.arange(50), 40)
        for seed, place in ((0, (0,)), (0, (1,)), (0, (0, 0)), (0, (0, 1)), (1, (0,)), (2**62, ()))
    ]
    numbers = torch.cat(tables).double().flatten()
    assert kstest(numbers, "uniform").pvalue > 0.01
    # As good as no number twice: neighbours, epochs and seeds share nothing.
    assert len(set(numbers.tolist())) > 0.999 * len(numbers)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_drop_their_part(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dropout, images = SharedDropout(0.3), torch.randn(6, 4, 50)
    torch.manual_seed(0)
    whole = dropout(images)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)
    for rank in range(world):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(0)
        assert torch.equal(dropout(images[rank::world]), whole[rank::world])
    kept = whole != 0
    assert 0.25 < 1 - float(kept.double().mean()) < 0.35
    assert torch.allclose(whole[kept], images[kept] / 0.7)
    assert torch.equal(dropout.eval()(images), images)


def test_dropout_is_where_timm_has_it() -> None:
    from timm.models.vision_transformer import VisionTransformer

    model = MaskedAutoencoder(16, 8, 1, 16, 2, 2, 8, 2, 2, encoder_dropout=0.1, decoder_dropout=0.2)
    theirs = VisionTransformer(16, 8, 1, 0, "", 16, 2, 2, proj_drop_rate=0.1)

    def rates(module: nn.Module) -> dict[str, float]:
        named = module.named_modules()
        return {name: part.p for name, part in named if isinstance(part, nn.Dropout) and part.p}

    assert rates(model.encoder) == rates(theirs)
    assert rates(model.decoder) == dict.fromkeys(rates(theirs), 0.2)
    model.set_dropout(0, 0)
    assert not rates(model)
    with pytest.raises(ValueError, match="dropout rates"):
        model.set_dropout(1, 0)
