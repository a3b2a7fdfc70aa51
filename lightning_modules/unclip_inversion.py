"""From CLIP embeddings back to images, by a diffusion model."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from artifacts.errors import InputError
from artifacts.weights import read_state_dict
from attacks.image_search import image_seeds
from attacks.recovery import rescaled
from lightning_modules.inverted_images import (
    Batch,
    InvertedImages,
    load_standardisation,
    require_width,
)
from models.probe import Probe
from models.unclip import UnCLIPDecoder


class UnCLIPInversion(InvertedImages):
    """Decodes CLIP ViT-L/14 embeddings with unCLIP; ``predict`` only.

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, B.4. The
    decoder needs embeddings of the right norm, which a reconstruction does not know. The paper
    takes it from the training set; here it comes from public facts, and the paper's way is left to
    evaluation: it writes targets of the training norm, which ``norm="as_given"`` takes.

    Args:
        model: A model id of the Hugging Face hub, or a local folder of that layout.
        probe: The attacked probe, for its mean and standard deviation. Without one targets are
            embeddings of CLIP as they are.
        norm: ``"sqrt_dim"``: norm √D in the standardised space, where training vectors have mean
            square 1. ``"number"``: the norm ``embedding_norm`` in CLIP's space. ``"public"``: there
            too, the mean norm of ``public_embeddings``. ``"as_given"``: targets as they are.
        embedding_norm: See ``norm``.
        public_embeddings: A safetensors file with CLIP embeddings (N, D) of any public images.
        guidance: How strongly the image follows the embedding.
        steps: Denoising steps.
        super_resolution_steps: Denoising steps of the enlargement to 256 pixels.
        precision: Of the networks: float16 on a GPU and float32 elsewhere (``"auto"``), or one.
        seed: Seed of the noise.

    Raises:
        InputError: A number makes no sense, or is missing.
    """

    standardisation: Probe

    def __init__(
        self,
        model: str = "kakaobrain/karlo-v1-alpha-image-variations",
        probe: str | None = None,
        norm: Literal["sqrt_dim", "number", "public", "as_given"] = "sqrt_dim",
        embedding_norm: float | None = None,
        public_embeddings: str | None = None,
        guidance: float = 8.0,
        steps: int = 25,
        super_resolution_steps: int = 7,
        precision: Literal["auto", "float32", "float16"] = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if (norm == "number") != (embedding_norm is not None):
            raise InputError("norm=number and embedding_norm belong together")
        if (norm == "public") != (public_embeddings is not None):
            raise InputError("norm=public and public_embeddings belong together")
        if embedding_norm is not None and not 0 < embedding_norm < float("inf"):
            raise InputError(f"embedding_norm must be positive, got {embedding_norm}")
        if not 0 <= guidance < float("inf"):
            raise InputError(f"guidance must be finite and not negative, got {guidance}")
        if min(steps, super_resolution_steps) < 1:
            raise InputError("steps and super_resolution_steps must be at least 1")
        self.save_hyperparameters(logger=False)
        self.model = model
        self.probe_path = probe
        self.norm = norm
        self.embedding_norm = embedding_norm
        self.public_embeddings = public_embeddings
        self.guidance = guidance
        self.steps = steps
        self.super_resolution_steps = super_resolution_steps
        self.precision = precision

    def configure_model(self) -> None:
        """Loads the decoder, the probe's standardisation, and public embeddings.

        Raises:
            InputError: A file is missing or broken, or they do not belong together.
        """
        if hasattr(self, "decoder"):
            return
        half = self.precision == "float16" or (
            self.precision == "auto" and self.trainer.strategy.root_device.type == "cuda"
        )
        try:
            self.decoder = UnCLIPDecoder(self.model, torch.float16 if half else torch.float32)
        except ValueError as error:
            raise InputError(str(error)) from error
        dimension = self.decoder.embedding_dim
        self.standardisation = load_standardisation(self.probe_path, dimension, self.model)
        if self.public_embeddings is not None:
            self.embedding_norm = _mean_norm(self.public_embeddings, dimension)

    def on_predict_start(self) -> None:
        """Moves the decoder, which is no part of the module: nothing in it is trained."""
        self.decoder.to(self.device)

    def prepare(self, batch: Batch) -> Batch:
        """Adds ``aim`` (B, D): embeddings in CLIP's space, at the norm that was asked for.

        Raises:
            InputError: They are of another width than the decoder's.
        """
        aim = batch["target"].to(self.dtype)
        require_width(aim, self.decoder.embedding_dim, self.model)
        if self.norm != "as_given" and self.probe_path is not None:
            aim = rescaled(aim)
        aim = self.standardisation.destandardise(aim)
        if self.embedding_norm is not None:
            aim = self.embedding_norm * F.normalize(aim, dim=1)
        return {**batch, "aim": aim}

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Decodes those items of a batch that are not finished yet.

        Returns:
            The prepared batch of these, and ``images`` (A, 3, S, S) in [0, 1].
        """
        batch = self.prepare(self.unfinished(batch))
        if len(batch["index"]) == 0:
            return batch
        images = self.decoder(
            batch["aim"],
            image_seeds(self.seed, batch["index"].tolist()),
            guidance=self.guidance,
            steps=self.steps,
            super_resolution_steps=self.super_resolution_steps,
        )
        return {**batch, "images": images}


def _mean_norm(path: str, dimension: int) -> float:
    """Mean norm of the embeddings in a file.

    Raises:
        InputError: It is missing or broken, or has no embeddings of that dimension.
    """
    made_by = "give a safetensors file with embeddings (N, D) of public images"
    tensors = read_state_dict(path, what="file of public embeddings", made_by=made_by)
    fitting = [t for t in tensors.values() if t.dim() == 2 and t.shape[1] == dimension]
    if len(fitting) != 1:
        raise InputError(f"{path} holds no matrix of {dimension} columns, or several; {made_by}")
    return float(fitting[0].float().norm(dim=1).mean())
