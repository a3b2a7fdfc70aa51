"""Comparison of a reconstruction with the truth."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.tensors import CANDIDATES, REPRESENTATIVES, read_tensors
from attacks.draw_trust import agreement, multiplier_spread, rank_correlation
from attacks.recovery import THRESHOLDS, Matches, Recovery, measure_recovery, rescaled
from attacks.row_space import row_space
from attacks.similarity import nearest_by_cosine, ssim
from lightning_modules.victim import load_probe, require_own_training_set

# Above it the paper, following earlier work, calls two images alike (A.2).
SSIM_THRESHOLD = 0.4


class ReconstructionEvaluation(L.LightningModule):
    """Counts the training samples that an attack recovered, beside what chance would count.

    This is evaluation, not attack: it alone reads the training set, through the data module that
    trained the probe, and no attack stage reads its results.

    Args:
        probe: The attacked probe.
        candidates: The attack's ``candidates.safetensors``.
        representatives: The attack's own choice, ``representatives.safetensors``; optional.
        seed: Chooses the held-out samples and random directions of the nulls.
        num_closest: How many of the best pairs of a training sample and a candidate to keep: the
            selection of section 3.3, which needs the training set.

    Raises:
        InputError: ``num_closest`` is not positive.
    """

    def __init__(
        self,
        probe: str,
        candidates: str,
        representatives: str | None = None,
        seed: int = 0,
        num_closest: int = 40,
    ) -> None:
        super().__init__()
        if num_closest < 1:
            raise InputError(f"num_closest must be at least 1, got {num_closest}")
        self.num_closest = num_closest
        self.probe_path = probe
        self.candidates_path = candidates
        self.representatives_path = representatives
        self.seed = seed
        self.metrics: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}

    def setup(self, stage: str) -> None:
        """Reads what is compared.

        Raises:
            InputError: A file is missing or broken, or they do not belong together.
        """
        self.probe = load_probe(self.probe_path)
        self.run, self.run_metadata = read_tensors(self.candidates_path, CANDIDATES)
        vectors = {"candidates": self.run["candidates"].flatten(0, 1)}
        if self.representatives_path is not None:
            chosen, _ = read_tensors(self.representatives_path, REPRESENTATIVES)
            vectors["representatives"] = chosen["representatives"]
        self.vectors = vectors
        features = self.trainer.datamodule.train_tensors[0].shape[1]  # type: ignore[attr-defined]
        for path, width in (
            (self.probe_path, self.probe.in_features),
            *((self.candidates_path, value.shape[1]) for value in vectors.values()),
        ):
            if width != features:
                raise InputError(f"{path} is for {width} features, the data have {features}")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Compares on the one batch of all held-out samples."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        train_inputs, train_labels = (tensor.to(self.device) for tensor in data.train_tensors)
        train, held_out = (self.probe.standardise(x) for x in (train_inputs, batch[0]))
        require_own_training_set(self.probe, self.probe_path, train_inputs)
        weight = self.probe.weights_and_biases()[0][0]
        basis = row_space(weight)
        if basis is None:
            basis = torch.eye(self.probe.in_features, device=self.device)
        outputs = self.probe(train_inputs)
        self.metrics = {
            "num_train": len(train),
            "num_test": len(held_out),
            "row_space_dimension": len(basis),
            "train_accuracy": _accuracy(outputs, train_labels),
            "test_accuracy": _accuracy(self.probe(batch[0]), batch[1]),
            "draws": len(self.run["residual"]),
            "diverged_draws": self.run_metadata.get("diverged_draws", "[]"),
            "best_residual": float(self.run["residual"].min()),
        }
        for name, vectors in self.vectors.items():
            vectors = vectors.to(train)
            recovery = measure_recovery(train, held_out, vectors, basis, self.seed)
            self.metrics[name] = {"count": len(vectors), "cosine": recovery.counts()}
            if name == "candidates":
                self.tensors = {
                    "similarity": recovery.recovered.similarity,
                    "held_out_similarity": recovery.null_held_out.similarity,
                    "margin": _margin(outputs, train_labels),
                    "labels": train_labels,
                }
                if "history" in self.run:
                    self.tensors["residual_history"] = self.run["history"]
                self._compare_pairs(recovery.recovered, data)
                if data.image_shape is not None:
                    self._compare_images(recovery, data.image_shape)
        self.metrics["draw_trust"] = self._judge_draws(train)
        # From the attack's side: how many of its representatives are near a training sample.
        if "representatives" in self.vectors:
            chosen = self.vectors["representatives"].to(train)
            hits, _ = nearest_by_cosine(chosen, train)
            self.metrics["representatives"]["precision"] = {
                str(t): float((hits > t).float().mean()) for t in THRESHOLDS
            }
        counts = self.metrics["candidates"]["cosine"]["0.75"]
        self.log_dict({f"recovery/{name}": float(value) for name, value in counts.items()})
        self.log("recovery/norm_ratio_median", self.metrics["norm_ratio"]["median"])

    def _judge_draws(self, train: Tensor) -> dict[str, Any]:
        """What an attacker sees of each draw, and its rank correlation with what it recovered."""
        candidates = self.run["candidates"].to(train)
        recovered = torch.stack(
            [(nearest_by_cosine(train, draw)[0] > THRESHOLDS[0]).sum() for draw in candidates]
        ).cpu()
        signals = {
            "residual": self.run["residual"],
            "agreement": agreement(self.run["candidates"], self.run["labels"]),
            "multiplier_spread": multiplier_spread(self.run["multipliers"]),
        }
        return {
            "recovered": recovered.tolist(),
            **{name: signal.tolist() for name, signal in signals.items()},
            "rank_correlation": {
                name: rank_correlation(signal, recovered) for name, signal in signals.items()
            },
        }

    def _compare_pairs(self, matches: Matches, data: Any) -> None:  # noqa: ANN401
        """Training samples and their nearest candidates: norms, margins, and the best of them."""
        ratio, closest = matches.norm_ratio(), matches.closest(self.num_closest)
        low, median, high = torch.quantile(ratio, ratio.new_tensor([0.05, 0.5, 0.95])).tolist()
        self.metrics["norm_ratio"] = {"quantile_0.05": low, "median": median, "quantile_0.95": high}
        self.metrics["margin_rank_correlation"] = rank_correlation(
            matches.similarity, self.tensors["margin"]
        )
        self.tensors |= {
            "sample_norm": matches.samples.norm(dim=1),
            "candidate_norm": matches.nearest.norm(dim=1),
            "closest_sample": closest,
            "closest_candidate": matches.nearest[closest],
            "closest_similarity": matches.similarity[closest],
        }
        # Of embeddings there is no image of a candidate: only the photograph can be shown.
        if data.image_shape is None and hasattr(data, "train_thumbnails"):
            self.tensors["closest_photo"] = data.train_thumbnails(closest.cpu())

    def _compare_images(self, recovery: Recovery, shape: tuple[int, int, int]) -> None:
        """SSIM of images and their nearest vectors at norm √D, with the same nulls."""
        self.metrics["ssim"] = {}
        for name, matches in vars(recovery).items():
            vectors = (matches.samples, rescaled(matches.nearest))
            images = [self.probe.destandardise(x).clamp(0, 1).view(-1, *shape) for x in vectors]
            similarity = ssim(*images)
            self.metrics["ssim"][name] = {
                "mean": float(similarity.mean()),
                "above_0.4": int((similarity > SSIM_THRESHOLD).sum()),
                "cosine_rank_correlation": rank_correlation(matches.similarity, similarity),
            }
            if name == "recovered":
                self.tensors |= {
                    "train_images": images[0],
                    "recovered_images": images[1],
                    "ssim": similarity,
                }


def _accuracy(outputs: Tensor, labels: Tensor) -> float:
    predicted = outputs.squeeze(1).sign() if outputs.shape[1] == 1 else outputs.argmax(1)
    return float((predicted == labels).float().mean())


def _margin(outputs: Tensor, labels: Tensor) -> Tensor:
    """Distance of the output from the decision boundary: y·φ, or φ_y - max of the others."""
    if outputs.shape[1] == 1:
        return outputs.squeeze(1) * labels
    own = outputs.gather(1, labels[:, None]).squeeze(1)
    others = outputs.scatter(1, labels[:, None], -torch.inf).amax(1)
    return own - others
