"""An unCLIP decoder of random weights, small enough for tests, in the layout of the hub."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch


def save_tiny_unclip(folder: Path, dimension: int) -> None:
    """Writes the parts that the decoder is loaded from, each into its subfolder.

    Args:
        folder: Where to.
        dimension: D of the embeddings it takes.
    """
    import transformers

    diffusers: Any = import_module("diffusers")
    package = diffusers.UnCLIPImageVariationPipeline.__module__.rpartition(".")[0]

    torch.manual_seed(0)
    text = transformers.CLIPTextConfig(
        hidden_size=dimension,
        projection_dim=dimension,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=4,
        max_position_embeddings=8,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    cross_attention = 8
    unet = {"layers_per_block": 1, "block_out_channels": (32, 64)}
    resnets = {
        "down_block_types": ("ResnetDownsampleBlock2D",) * 2,
        "up_block_types": ("ResnetUpsampleBlock2D",) * 2,
    }
    parts = {
        "text_encoder": transformers.CLIPTextModelWithProjection(text),
        "text_proj": import_module(f"{package}.text_proj").UnCLIPTextProjModel(
            clip_embeddings_dim=dimension,
            time_embed_dim=32 * 4,
            cross_attention_dim=cross_attention,
        ),
        "decoder": diffusers.UNet2DConditionModel(
            **unet,
            sample_size=8,
            in_channels=3,
            out_channels=6,
            down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
            up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
            mid_block_type="UNetMidBlock2DSimpleCrossAttn",
            cross_attention_dim=cross_attention,
            attention_head_dim=4,
            resnet_time_scale_shift="scale_shift",
            class_embed_type="identity",
        ),
        "super_res_first": diffusers.UNet2DModel(
            **unet, **resnets, sample_size=16, in_channels=6, out_channels=3
        ),
        "super_res_last": diffusers.UNet2DModel(
            **unet, **resnets, sample_size=16, in_channels=6, out_channels=3
        ),
        "decoder_scheduler": diffusers.UnCLIPScheduler(variance_type="learned_range"),
        "super_res_scheduler": diffusers.UnCLIPScheduler(variance_type="fixed_small_log"),
    }
    for name, part in parts.items():
        part.save_pretrained(str(folder / name))
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    vocabulary = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2, "a": 3}
    (tokenizer / "vocab.json").write_text(json.dumps(vocabulary))
    (tokenizer / "merges.txt").write_text("#version: 0.2\n")
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 8})
    )
