"""The diffusion decoder that turns CLIP embeddings into images (appendix B.4)."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor


class UnCLIPDecoder:
    """Karlo's unCLIP: CLIP ViT-L/14 image embeddings, projected and un-normalised, to images.

    A thin hold on diffusers' ``UnCLIPImageVariationPipeline``, whose own loader fails in the
    versions this package allows: its parts are loaded one by one. The image encoder is not loaded,
    as embeddings are given.

    Args:
        model: A model id of the Hugging Face hub, or a local folder of that layout.
        dtype: Of the networks.

    Raises:
        ValueError: It is not there, or is another kind of model.
    """

    def __init__(self, model: str, dtype: torch.dtype = torch.float32) -> None:
        import diffusers
        import transformers

        pipeline: Any = diffusers.UnCLIPImageVariationPipeline
        package = pipeline.__module__.rpartition(".")[0]  # Where it is depends on the version.
        networks: dict[str, Any] = {
            "decoder": diffusers.UNet2DConditionModel,
            "super_res_first": diffusers.UNet2DModel,
            "super_res_last": diffusers.UNet2DModel,
            "text_proj": import_module(f"{package}.text_proj").UnCLIPTextProjModel,
            "text_encoder": transformers.CLIPTextModelWithProjection,
        }
        others: dict[str, Any] = {
            "tokenizer": transformers.CLIPTokenizer,
            "decoder_scheduler": diffusers.UnCLIPScheduler,
            "super_res_scheduler": diffusers.UnCLIPScheduler,
        }
        try:
            parts: dict[str, Any] = {
                name: kind.from_pretrained(
                    model, subfolder=name, torch_dtype=dtype, use_safetensors=True
                )
                for name, kind in networks.items()
            }
            for name, kind in others.items():
                parts[name] = kind.from_pretrained(model, subfolder=name)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"no unCLIP decoder could be loaded from {model}: {reason}") from error
        # transformers makes an empty tokenizer of a folder that is not there.
        if len(parts["tokenizer"]) < parts["text_encoder"].config.vocab_size:
            raise ValueError(
                f"no unCLIP decoder could be loaded from {model}: its tokenizer has no vocabulary"
            )
        encoder: Any = _stand_in_encoder()
        self.pipeline = pipeline(
            **parts,
            image_encoder=encoder.to(dtype),
            feature_extractor=transformers.CLIPImageProcessor(),
        )
        self.pipeline.set_progress_bar_config(disable=True)
        self.dtype = dtype
        self.embedding_dim = int(parts["text_proj"].config.clip_embeddings_dim)

    def to(self, device: torch.device) -> "UnCLIPDecoder":
        """Moves the networks."""
        self.pipeline.to(device)
        return self

    def __call__(
        self,
        embeddings: Tensor,
        seeds: list[int],
        *,
        guidance: float = 8.0,
        steps: int = 25,
        super_resolution_steps: int = 7,
    ) -> Tensor:
        """Draws one image for each embedding.

        Args:
            embeddings: (B, D).
            seeds: Seed of each image (B,).
            guidance: How strongly the image follows the embedding.
            steps: Denoising steps.
            super_resolution_steps: Denoising steps of the enlargement.

        Returns:
            Images (B, 3, S, S) in [0, 1].
        """
        output = self.pipeline(
            image_embeddings=embeddings.to(self.dtype),
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            decoder_guidance_scale=guidance,
            decoder_num_inference_steps=steps,
            super_res_num_inference_steps=super_resolution_steps,
            output_type="np",
        )
        return torch.from_numpy(output.images).permute(0, 3, 1, 2).float().contiguous()


def _stand_in_encoder() -> Any:  # noqa: ANN401 - transformers has no types
    """The smallest image encoder: the pipeline only asks for its dtype."""
    import transformers

    config = transformers.CLIPVisionConfig(
        hidden_size=4,
        intermediate_size=4,
        projection_dim=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        image_size=2,
        patch_size=2,
    )
    return transformers.CLIPVisionModelWithProjection(config)
