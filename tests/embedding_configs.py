"""Which shipped configs are about embeddings of images: ``test_embedding_configs`` runs them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Composition:
    """Files of configs that make one training.

    Attributes:
        probe: Of the probe.
        data: In ``configs/data``.
        backbones: In ``configs/backbones``.
        dataset: Which small dataset stands in for the real one.
        options: Further options of a user.
    """

    probe: str
    data: str
    backbones: tuple[str, ...]
    dataset: str
    options: tuple[str, ...] = ()

    @property
    def files(self) -> list[str]:
        """In the order in which they compose."""
        return [
            f"transfer_reconstruction/{self.probe}.yaml",
            f"data/{self.data}.yaml",
            *(f"backbones/{name}.yaml" for name in self.backbones),
        ]


COMPOSITIONS = [
    Composition("probe_binary", "food101_binary", ("vit",), "food101"),
    Composition("probe_multiclass", "food101_multiclass", ("dino", "cls_and_mean"), "food101"),
    Composition(
        "probe_binary",
        "inaturalist_fauna_flora",
        ("dinov2",),
        "fauna_flora",
        ("--data.images.num_test=10",),
    ),
    Composition(
        "probe_multiclass",
        "inaturalist_multiclass",
        ("clip",),
        "multiclass",
        ("--model.out_features=4",),
    ),
    Composition("probe_binary", "cifar10_pixels", (), "cifar10"),
    Composition("probe_binary", "food101_binary", ("vgg",), "food101"),
]
EMBEDDING_PIPELINES = (
    "photos/pipeline.yaml",
    "transfer_reconstruction/fig03_models.yaml",
    "transfer_reconstruction/fig14_cls_mean.yaml",
)
EMBEDDING_CONFIGS = {
    "backbones/dino_cls_mean.yaml",
    "photos/data.yaml",
    "photos/reconstruct.yaml",
    *EMBEDDING_PIPELINES,
    *(file for composition in COMPOSITIONS for file in composition.files[1:]),
}
