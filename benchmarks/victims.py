"""Real data and trained probes to attack, made once and kept in a folder for the next benchmark."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from datamodules.in_memory import Batch, balanced_sample
from lightning_modules import ProbeMLP
from models.probe import Probe

LEARNING_RATE, EPOCHS = 0.01, 10_000
# Image folders below the shared one, with their labels.
FOLDERS = {
    "photos": {"photos/animals": 1, "photos/food": -1, "photos/plants": -1},
    "clipart": {"food_nature/train/food": 1, "food_nature/train/nature": -1},
}
DATA = (*FOLDERS, "digits", "digits10")


@dataclass(frozen=True)
class Victim:
    """A probe and what it was trained on.

    Attributes:
        probe: The file that an attack reads.
        train: Training samples (n, D), as the probe's layers see them.
        held_out: Samples of the same data that it was not trained on (N, D), likewise.
        weights: The probe's first weight matrix (W, D).
        accuracy: Share of correct predictions for ``held_out``.
    """

    probe: Path
    train: Tensor
    held_out: Tensor
    weights: Tensor
    accuracy: float


def dataset(name: str, shared: Path | None, cache: Path) -> Batch:
    """All vectors (N, D) and labels (N,) of a data set: pixels of digits, else embeddings.

    Args:
        name: One of ``DATA``: digits are even against odd, digits10 has ten classes.
        shared: Folder with the images and the ViT's weights; not needed for digits.
        cache: Where embeddings are kept.
    """
    if name.startswith("digits"):
        from sklearn.datasets import load_digits

        source = load_digits()
        target = torch.from_numpy(source.target)
        vectors = torch.from_numpy(source.data).float() / 16
        return vectors, target if name == "digits10" else 1 - 2 * (target % 2)
    path = cache / f"{name}.safetensors"
    if not path.exists():
        if shared is None:
            raise SystemExit(f"--data {name} needs --shared, the folder with the images")
        vectors, labels = _embeddings(shared, FOLDERS[name])
        save_file({"vectors": vectors, "labels": labels}, path)
    stored = load_file(path)
    return stored["vectors"], stored["labels"]


def _embeddings(shared: Path, folders: dict[str, int]) -> Batch:
    """[CLS] of the local ViT-S/14 for every image in some folders, with their labels."""
    import timm
    from PIL import Image
    from torchvision.transforms import v2

    weights = shared / "data/vit_small_patch14_dinov2.safetensors"
    model = timm.create_model(
        "vit_small_patch14_dinov2.lvd142m",
        pretrained=True,
        num_classes=0,
        img_size=224,
        pretrained_cfg_overlay={"file": str(weights)},
    ).eval()
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(224),
            v2.CenterCrop(224),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    vectors, labels = [], []
    for folder, label in folders.items():
        for path in sorted((shared / "data" / folder).iterdir()):
            image = Image.open(path).convert("RGB")
            with torch.no_grad():
                vectors.append(model(transform(image)[None])[0])
            labels.append(label)
    return torch.stack(vectors), torch.tensor(labels)


def victim(
    name: str, data: Batch, size: int, seed: int, cache: Path, weight_decay: float = 0.08
) -> Victim:
    """A probe D-500-1 (or -C) trained on a balanced sample; the other samples are held out.

    Args:
        name: Name of the data set, for the file's name.
        data: What :func:`dataset` gave.
        size: Training samples n.
        seed: Chooses the sample and the probe's initialisation.
        cache: Where probes are kept.
        weight_decay: The training's weight decay.
    """
    vectors, labels = data
    chosen = balanced_sample(labels, size, torch.Generator().manual_seed(seed))
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[chosen] = False
    # Other data under the same name make another file.
    digest = hashlib.sha256(vectors[chosen].numpy().tobytes()).hexdigest()[:8]
    path = cache / f"probe_{name}_n{size}_s{seed}_wd{weight_decay:g}_{digest}.pt"
    outputs = 1 if set(labels.tolist()) == {-1, 1} else len(torch.unique(labels))
    if not path.exists():
        torch.manual_seed(seed)
        module = ProbeMLP(vectors.shape[1], out_features=outputs, weight_decay=weight_decay)
        module.probe.set_standardisation(vectors[chosen])
        train_in_span(module, vectors[chosen], labels[chosen])
        torch.save(module.probe.state_dict(), path)
    probe = Probe.from_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        logits = probe(vectors[rest])
        predicted = logits[:, 0].sign() if outputs == 1 else logits.argmax(1)
        return Victim(
            path,
            probe.standardise(vectors[chosen]),
            probe.standardise(vectors[rest]),
            probe.weights_and_biases()[0][0].detach(),
            float((predicted == labels[rest]).float().mean()),
        )


def train_in_span(module: ProbeMLP, inputs: Tensor, labels: Tensor) -> None:
    """Trains as :class:`ProbeMLP` does, in the coordinates of the training data.

    The same steps for a fraction of the work: gradients of the first layer lie in the span of the
    n training samples, and everywhere else the initial weights only decay.

    Args:
        module: The probe, its standardisation already set.
        inputs: Training samples (n, D).
        labels: Their labels (n,).
    """
    probe, decay = module.probe, module.weight_decay
    first, last = (weight.detach() for weight, _ in probe.weights_and_biases())
    samples = probe.standardise(inputs)
    _, values, basis = torch.linalg.svd(samples.double(), full_matrices=False)
    basis = basis[values > 1e-6 * values[0]].to(samples)
    small = ProbeMLP(len(basis), [len(first)], len(last), weight_decay=decay)
    outside = first - first @ basis.T @ basis
    inner, outer = (weight for weight, _ in small.probe.weights_and_biases())
    with torch.no_grad():
        inner.copy_(first @ basis.T)
        outer.copy_(last)
    optimiser = torch.optim.SGD(small.parameters(), lr=LEARNING_RATE, weight_decay=decay)
    batch = (samples @ basis.T, labels)
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        loss, _ = small.loss_and_accuracy(batch)
        torch.autograd.backward(loss)
        optimiser.step()
    with torch.no_grad():
        first.copy_(inner @ basis + outside * (1 - LEARNING_RATE * decay) ** EPOCHS)
        last.copy_(outer)
