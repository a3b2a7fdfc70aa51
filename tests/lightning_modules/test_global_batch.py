"""Places and means of samples that several processes share, against torch's own sampler."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from lightning_modules.global_batch import share_of_batch


def run(loader: object, world: int, rank: int, **state: bool) -> Any:  # noqa: ANN401
    return SimpleNamespace(
        **{"training": True, "testing": False, "train_dataloader": loader, **state},
        world_size=world,
        global_rank=rank,
        datamodule=SimpleNamespace(batch_size=4),
    )


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("size", [24, 25, 29, 2])
def test_shares_are_those_of_torchs_sampler(world: int, size: int) -> None:
    values, seen = torch.randn(size, dtype=torch.float64), []
    means: dict[int, list[torch.Tensor]] = {}
    data: Any = range(size)
    for rank in range(world):
        sampler: Any = DistributedSampler(data, world, rank, shuffle=True, seed=7)
        loader: Any = DataLoader(data, sampler=sampler, batch_size=4)
        for batch_idx, batch in enumerate(loader):
            share = share_of_batch(run(loader, world, rank), batch_idx, len(batch))
            places = share.positions[share.counted].tolist()
            seen += list(zip(places, batch[share.counted].tolist(), strict=True))
            means.setdefault(batch_idx, []).append(share.mean(values[batch]))
    order: list[int] = list(DistributedSampler(data, 1, 0, shuffle=True, seed=7))
    assert sorted(seen) == list(enumerate(order))
    for batch_idx, terms in means.items():
        expected = values[order][4 * world * batch_idx : 4 * world * (batch_idx + 1)].mean()
        assert float(torch.stack(terms).mean()) == pytest.approx(float(expected), abs=1e-14)


def test_the_loader_is_that_of_the_stage() -> None:
    loaders = [SimpleNamespace(dataset=range(size)) for size in (5, 6, 7, 8)]
    trainer = run(loaders[0], 1, 0)
    trainer.val_dataloaders, trainer.test_dataloaders = loaders[1], loaders[2:]
    assert share_of_batch(trainer, 1, 4).total == 1
    trainer.training = False
    assert share_of_batch(trainer, 1, 4).total == 2
    trainer.testing = True
    assert [share_of_batch(trainer, 1, 4, at).total for at in (0, 1)] == [3, 4]
