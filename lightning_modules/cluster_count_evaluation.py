"""How the number of clusters decides over the representatives, judged by the truth."""

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.tensors import CANDIDATES, read_tensors
from attacks.centres import RepresentativeName
from attacks.label_trees import Cut, LabelTree, label_trees
from attacks.rankings import RankingName
from attacks.recovery import rescaled
from attacks.representatives import select_representatives
from attacks.similarity import nearest_by_cosine, ssim
from lightning_modules.progress import announced
from lightning_modules.victim import load_probe, require_own_training_set


class ClusterCountEvaluation(L.LightningModule):
    """Counts good representatives by number of clusters: Fig. 7 and 16 of the paper (A.7).

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning. One tree of
    the candidates is cut into ever more clusters; each time the ``top`` best are represented, and
    compared with the training sample nearest to them. This is evaluation: it reads the training
    set, and no attack stage reads its results.

    Args:
        probe: The attacked probe.
        candidates: The attack's ``candidates.safetensors``.
        maxclust: Numbers of clusters; those beyond the number of candidates are left out.
        representatives: Averages to compare; the paper's are ``mean`` and ``nearest``.
        ranking: What clusters are ranked by; the paper takes their size.
        top: Representatives for each number; 150 in the paper.
        similarity: Cosine similarity above which a representative is good.
        ssim: Structural similarity above which it is, where samples are images.
        seed: Chooses the held-out samples of the null.

    Raises:
        InputError: A number or name makes no sense.
    """

    def __init__(
        self,
        probe: str,
        candidates: str,
        maxclust: Sequence[int],
        representatives: Sequence[RepresentativeName] = ("mean", "nearest"),
        ranking: RankingName = "size",
        top: int = 150,
        similarity: float = 0.75,
        ssim: float = 0.4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not maxclust or min(*maxclust, top, len(representatives)) < 1:
            raise InputError("maxclust, representatives and top must be positive and not empty")
        if not (-1 <= similarity <= 1 and -1 <= ssim <= 1):
            raise InputError(f"similarity and ssim are from -1 to 1, got {similarity} and {ssim}")
        self.probe_path = probe
        self.candidates_path = candidates
        self.maxclust = sorted(set(maxclust))
        self.representatives = representatives
        self.ranking: RankingName = ranking
        self.top = top
        self.threshold = {"cosine": similarity, "ssim": ssim}
        self.seed = seed
        self.metrics: dict[str, Any] = {}

    def setup(self, stage: str) -> None:
        """Reads what is compared.

        Raises:
            InputError: A file is missing or broken, or no number of clusters is possible.
        """
        self.probe = load_probe(self.probe_path)
        self.run, _ = read_tensors(self.candidates_path, CANDIDATES)
        draws, m, width = self.run["candidates"].shape
        features = self.trainer.datamodule.train_tensors[0].shape[1]  # type: ignore[attr-defined]
        for path, found in (
            (self.probe_path, self.probe.in_features),
            (self.candidates_path, width),
        ):
            if found != features:
                raise InputError(f"{path} is for {found} features, the data have {features}")
        self.counts = [count for count in self.maxclust if count <= draws * m]
        if not self.counts:
            raise InputError(
                f"{self.candidates_path} holds {draws * m} candidates, fewer than the least "
                f"number of clusters, {self.maxclust[0]}; lower model.maxclust"
            )

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Compares on the one batch of all held-out samples."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        inputs = data.train_tensors[0].to(self.device)
        require_own_training_set(self.probe, self.probe_path, inputs)
        train, held_out = (self.probe.standardise(x) for x in (inputs, batch[0]))
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(held_out), generator=generator)[: len(train)]
        held_out = held_out[order.to(held_out.device)]
        flat = self.run["candidates"].flatten(0, 1).to(train)
        labels = self.run["labels"].repeat(len(self.run["candidates"]))
        trees = label_trees(flat, labels, announced("clustering"))
        self.metrics = {
            "candidates": len(flat),
            "num_train": len(train),
            "top": self.top,
            "ranking": self.ranking,
            "threshold": self.threshold,
            "maxclust": self.counts,
            "curves": {
                name: self._curve(name, flat, labels, trees, train, held_out, data.image_shape)
                for name in self.representatives
            },
        }

    def _curve(
        self,
        name: RepresentativeName,
        flat: Tensor,
        labels: Tensor,
        trees: list[LabelTree],
        train: Tensor,
        held_out: Tensor,
        shape: tuple[int, int, int] | None,
    ) -> dict[str, list[int]]:
        """By number of clusters: good representatives, the same for held-out samples, distinct."""
        draws, m = self.run["multipliers"].shape
        curve: dict[str, list[int]] = {"cosine": [], "cosine_null_held_out": [], "distinct": []}
        if shape is not None:
            curve |= {"ssim": [], "ssim_null_held_out": []}
        for count in self.counts:
            chosen = select_representatives(
                flat,
                self.run["multipliers"].flatten(),
                torch.arange(draws).repeat_interleave(m),
                labels,
                cut=Cut(maxclust=count),
                representative=name,
                ranking=self.ranking,
                top=self.top,
                trees=trees,
            ).vectors
            found, _ = nearest_by_cosine(train, chosen)
            curve["distinct"].append(int((found > self.threshold["cosine"]).sum()))
            for samples, suffix in ((train, ""), (held_out, "_null_held_out")):
                similarity, nearest = nearest_by_cosine(chosen, samples)
                good = similarity > self.threshold["cosine"]
                curve["cosine" + suffix].append(int(good.sum()))
                if shape is not None:
                    images = [
                        self.probe.destandardise(x).clamp(0, 1).view(-1, *shape)
                        for x in (rescaled(chosen), samples[nearest])
                    ]
                    alike = ssim(*images) > self.threshold["ssim"]
                    curve["ssim" + suffix].append(int(alike.sum()))
        return curve
