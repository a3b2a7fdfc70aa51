"""The decoder of a masked autoencoder (He et al., 2021)."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.patch_masking import Masking, take


def sincos_positions(dim: int, grid: int) -> Tensor:
    """Fixed 2-D sine-cosine positions: half of the dimensions for the column, half for the row.

    Args:
        dim: Dimension D of a token, a multiple of 4.
        grid: Patches per side G.

    Returns:
        (1, 1 + G², D) in float32, zeros for the class token.

    Raises:
        ValueError: D is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(f"a token's dimension must be a multiple of 4, got {dim}")
    frequencies = 10000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angles = torch.outer(torch.arange(grid, dtype=torch.float64), frequencies)
    axis = torch.cat([angles.sin(), angles.cos()], dim=1)
    columns = axis.expand(grid, grid, -1)
    rows = axis[:, None].expand(grid, grid, -1)
    table = torch.cat([columns, rows], dim=2).reshape(grid * grid, dim)
    return F.pad(table, (0, 0, 1, 0)).float()[None]


class MaskedDecoder(nn.Module):
    """Fills in removed patches from the latent of the visible ones.

    Args:
        latent_dim: Dimension of the encoder's tokens.
        grid: Patches per side.
        patch_dim: Numbers per patch, p²·c.
        embed_dim: Dimension D of its own tokens.
        depth: Number of blocks.
        num_heads: Attention heads.
        mlp_ratio: Hidden width of a block's MLP over D.
    """

    def __init__(
        self,
        latent_dim: int,
        grid: int,
        patch_dim: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        from timm.models.vision_transformer import Block

        norm = partial(nn.LayerNorm, eps=1e-6)
        self.embed = nn.Linear(latent_dim, embed_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(sincos_positions(embed_dim, grid), requires_grad=False)
        self.blocks = nn.Sequential(
            *(
                Block(
                    embed_dim,
                    num_heads,
                    mlp_ratio,
                    qkv_bias=True,
                    norm_layer=norm,  # type: ignore[arg-type]
                )
                for _ in range(depth)
            )
        )
        self.norm = norm(embed_dim)
        self.pred = nn.Linear(embed_dim, patch_dim)

    def tokens(self, latent: Tensor, masking: Masking) -> Tensor:
        """Input tokens (N, 1 + L, D) of the blocks: class, visible, removed.

        Attention does not care for order, so patches stay in that of the masking.
        """
        known = self.embed(latent)
        positions = self.pos_embed.expand(len(latent), -1, -1)
        positions = take(positions, masking.order + 1)
        num_visible = masking.visible.shape[1]
        return torch.cat(
            [
                known[:, :1] + self.pos_embed[:, :1],
                known[:, 1:] + positions[:, :num_visible],
                self.mask_token.to(known.dtype) + positions[:, num_visible:],
            ],
            dim=1,
        )

    def predict_removed(self, latent: Tensor, masking: Masking) -> Tensor:
        """Predicted values (N, L - K, p²·c) of the removed patches, in the masking's order.

        The same as from :meth:`forward`, without what the last block and the head would do for
        other tokens.
        """
        tokens = self.blocks[:-1](self.tokens(latent, masking))
        removed = _last_block(self.blocks[-1], tokens, 1 + masking.visible.shape[1])
        prediction: Tensor = self.pred(self.norm(removed))
        return prediction

    def forward(self, latent: Tensor, masking: Masking) -> Tensor:
        """Predicted values (N, L, p²·c) of all patches, in their order in the image.

        Args:
            latent: The encoder's tokens (N, 1 + K, E).
            masking: Which patches they are.
        """
        filled = self.blocks(self.tokens(latent, masking))
        prediction = self.pred(self.norm(filled[:, 1:]))
        return torch.empty_like(prediction).scatter(
            1, masking.order[:, :, None].expand_as(prediction), prediction
        )


def _last_block(block: nn.Module, tokens: Tensor, first: int) -> Tensor:
    """What a block makes of the tokens from ``first`` on, to which all of ``tokens`` speak."""
    attention: Any = block.attn
    inputs = block.norm1(tokens)  # type: ignore[operator]
    weight, bias, dim = attention.qkv.weight, attention.qkv.bias, tokens.shape[2]
    asked = F.linear(inputs[:, first:], weight[:dim], bias[:dim])
    known = F.linear(inputs, weight[dim:], bias[dim:])
    query, key, value = (
        torch.unflatten(part, 2, (attention.num_heads, -1)).transpose(1, 2)
        for part in (asked, *known.chunk(2, dim=2))
    )
    answer = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    rest = tokens[:, first:] + attention.proj_drop(attention.proj(answer))
    made: Tensor = rest + block.mlp(block.norm2(rest))  # type: ignore[operator]
    return made
