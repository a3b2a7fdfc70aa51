"""The handwritten digits of scikit-learn as images."""

from typing import Any, Literal

import torch

from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageArray


class DigitImagesDataModule(ImageDataModule):
    """1,797 grey images of 8 by 8 pixels that need no download.

    With the same ``seed`` and ``num_train`` these are the digits of
    :class:`~datamodules.digits.DigitsDataModule`, where ``task: parity`` is that of the same name.

    Args:
        image_size: Side that the images are resized to.
        in_chans: 1 (grey) or 3 (RGB).
        test_from: As the base class; by default the digits that are not trained on are held out.
        kwargs: As :class:`~datamodules.image_data.ImageDataModule`.
    """

    name = "digits"
    layout = "scikit-learn's load_digits"

    def __init__(
        self,
        image_size: int = 8,
        in_chans: int = 1,
        test_from: Literal["test", "train"] = "train",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(
            root="", image_size=image_size, in_chans=in_chans, test_from=test_from, **kwargs
        )

    def read(self, classes: list[str] | None) -> ImageArray:
        """Loads all digits."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        return ImageArray(
            identifiers=[f"digits/{index}" for index in range(len(digits.target))],
            targets=torch.from_numpy(digits.target).long(),
            classes=[str(digit) for digit in range(10)],
            held_out=None,
            pixels=(torch.from_numpy(digits.images) * (255 / 16)).round().to(torch.uint8),
        )
