"""When two checkpoints count as equal."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts.encoders import write_encoder
from artifacts.files import sha256_of_file
from artifacts.weights import sha256_of_content


def checkpoint() -> dict[str, Any]:
    # Two strings that are equal without being the same, as after reading one of them from a file.
    path = "runs/x"
    return {
        "epoch": 3,
        "state_dict": {"w": torch.arange(6.0).view(2, 3), "half": torch.ones(2).bfloat16()},
        "optimizer_states": [{"param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}],
        "callbacks": {"LastCheckpoint": {"best_model_path": path, "dirpath": path}},
        "names": [path, path],
    }


def saved(path: Path, content: dict[str, Any]) -> str:
    torch.save(content, path)
    return sha256_of_content(path)


def test_equal_values_are_equal_whatever_the_bytes(tmp_path: Path) -> None:
    first = saved(tmp_path / "first.ckpt", checkpoint())
    again = dict(reversed(checkpoint().items()))
    again["names"] = ["runs/x", "".join(["runs", "/x"])]
    again["callbacks"] = {"Timer": 1.5}
    again["state_dict"]["w"] = torch.arange(6.0).view(2, 3).T.contiguous().T
    assert saved(tmp_path / "again.ckpt", again) == first
    assert sha256_of_file(tmp_path / "first.ckpt") != sha256_of_file(tmp_path / "again.ckpt")


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(epoch=4),
        lambda c: c.update(epoch="3"),
        lambda c: c["state_dict"]["w"][0, 0].fill_(1e-45),
        lambda c: c["state_dict"].update(w=c["state_dict"]["w"].double()),
        lambda c: c["state_dict"].update(w=c["state_dict"]["w"].view(3, 2)),
        lambda c: c["state_dict"].update(v=c["state_dict"].pop("w")),
        lambda c: c["names"].append("runs/x"),
        lambda c: c["optimizer_states"][0]["param_groups"][0].update(betas=(0.9, 0.98)),
    ],
)
def test_any_other_value_is_another(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    content = checkpoint()
    change(content)
    assert saved(tmp_path / "a.ckpt", content) != saved(tmp_path / "b.ckpt", checkpoint())


def test_what_is_no_plain_checkpoint_counts_by_its_bytes(tmp_path: Path) -> None:
    holds_itself: list[Any] = []
    holds_itself.append(holds_itself)
    code = tmp_path / "code.ckpt"
    torch.save({"x": os.abort}, code)
    assert sha256_of_content(code) == sha256_of_file(code)
    for value in (holds_itself, torch.eye(2).to_sparse()):
        assert saved(tmp_path / "odd.ckpt", {"x": value}) == sha256_of_file(tmp_path / "odd.ckpt")
    (tmp_path / "text.ckpt").write_text("text")
    assert sha256_of_content(tmp_path / "text.ckpt") == sha256_of_file(tmp_path / "text.ckpt")


def test_an_encoder_is_always_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    weights = {"b": torch.ones(2), "a": torch.eye(3).T}
    contents = set()
    for _ in range(8):
        write_encoder(path, weights, num_heads=2, mean=torch.zeros(3), std=torch.ones(3))
        contents.add(path.read_bytes())
    assert len(contents) == 1
