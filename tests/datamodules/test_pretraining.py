"""Order, position and memory of pre-training images."""

from itertools import islice
from typing import Literal

import pytest
import torch

from artifacts.errors import InputError
from datamodules import DigitImagesDataModule, PretrainingDataModule
from datamodules.pixel_batches import EpochBatches, PixelBatches, ResumableLoader


def digits(
    in_memory: Literal["auto", "always", "never"] = "auto", num_val: int | None = None
) -> PretrainingDataModule:
    images = DigitImagesDataModule(image_size=8, num_train=60, num_test=40)
    data = PretrainingDataModule(images, batch_size=16, in_memory=in_memory, num_val=num_val)
    data.setup()
    return data


def test_memory_and_stream_give_the_same_batches() -> None:
    held, streamed = digits("always").train_dataloader(), digits("never").train_dataloader()
    assert len(held) == len(streamed) == 3
    for ours, theirs in zip(held, streamed, strict=True):
        assert ours[0].dtype == torch.uint8
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_too_large_for_memory_is_streamed() -> None:
    data = digits()
    data.memory_limit = 1e-9
    loader = data.train_dataloader()
    assert isinstance(loader.dataset, PixelBatches)
    assert loader.dataset.pixels is None


def test_each_epoch_has_every_image_once_in_its_own_order() -> None:
    data = digits()
    data.drop_last = False
    loader = data.train_dataloader()
    stored = data.images.train_set.all_pixels()
    orders = []
    for epoch in (0, 1):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        batches = list(loader)
        assert [len(pixels) for pixels, _ in batches] == [16, 16, 16, 12]
        pixels = torch.cat([pixels for pixels, _ in batches])
        assert sorted(map(bytes, pixels.numpy())) == sorted(map(bytes, stored.numpy()))
        orders.append(pixels)
    assert not torch.equal(*orders)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_continues_where_it_was_left(workers: int) -> None:
    data = digits("never" if workers else "always")
    data.images.num_workers = workers
    whole = [pixels for pixels, _ in data.train_dataloader()]
    done = 1
    loader = data.train_dataloader()
    rest = ResumableLoader(loader.dataset, loader.sampler, workers, lambda: done)  # type: ignore[arg-type]
    continued = [pixels for pixels, _ in rest]
    assert len(continued) == 2
    assert all(torch.equal(*pair) for pair in zip(continued, whole[1:], strict=True))
    done = 0
    assert len(list(rest)) == 3


def test_the_epoch_is_told_after_the_iterator_is_made() -> None:
    # Lightning does so when it continues a run.
    data = digits()
    loader = data.train_dataloader()
    iterator = iter(loader)
    loader.sampler.set_epoch(5)  # type: ignore[attr-defined]
    late = next(iterator)[0]
    other = data.train_dataloader()
    other.sampler.set_epoch(5)  # type: ignore[attr-defined]
    assert torch.equal(late, next(iter(other))[0])


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_of_one(world: int, drop_last: bool) -> None:
    data = digits()
    for size in (60, 59, 37, 11):
        batches = PixelBatches(data.images.train_set.subset(range(size)))

        def dealt(batch: int, ranks: int, rank: int, of: PixelBatches = batches) -> list[list[int]]:
            return list(
                EpochBatches(
                    of, batch, shuffle=True, drop_last=drop_last, world_size=ranks, rank=rank
                )
            )

        alone = dealt(6 * world, 1, 0)
        parts = [dealt(6, world, rank) for rank in range(world)]
        assert {len(part) for part in parts} == {len(alone)}
        for number, batch in enumerate(alone):
            together = [
                part[number][at] for at in range(6) for part in parts if at < len(part[number])
            ]
            # The last are repeated, so that all have equally many.
            assert together[: len(batch)] == batch
            assert len(together) - len(batch) < world


def test_fewer_images_than_a_batch_are_one_batch() -> None:
    data = digits()
    data.batch_size = 100
    assert [len(pixels) for pixels, _ in data.train_dataloader()] == [60]


def test_validation_has_members_then_others() -> None:
    data = digits(num_val=20)
    members, others = (
        torch.cat([pixels for pixels, _ in loader]) for loader in data.val_dataloader()
    )
    assert len(members) == len(others) == 20
    stored = set(map(bytes, data.images.train_set.all_pixels().numpy()))
    assert all(bytes(image) in stored for image in members.numpy())
    sizes = [sum(len(p) for p, _ in islice(loader, 9)) for loader in data.test_dataloader()]
    assert sizes == [60, 40]
    pictures = data.first_images(4)
    assert torch.equal(pictures[0], data.images.train_set.all_pixels()[:4])


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="batch_size and num_val"):
        PretrainingDataModule(DigitImagesDataModule(), batch_size=0)
    for limit in (-1.0, float("nan")):
        with pytest.raises(InputError, match="memory_limit must not be negative"):
            PretrainingDataModule(DigitImagesDataModule(), memory_limit=limit)
    with pytest.raises(InputError, match="seed must be from 0"):
        PretrainingDataModule(DigitImagesDataModule(), seed=-1)
    with pytest.raises(InputError, match="no non-members"):
        PretrainingDataModule(DigitImagesDataModule(test_from="train")).setup()
