"""Files between stages: whole, checked, and never executed."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from artifacts.errors import InputError
from artifacts.files import atomic_path, read_json, write_json
from artifacts.tensors import REPRESENTATIVES, read_tensors, write_tensors
from artifacts.weights import read_state_dict

TENSORS = {
    "representatives": torch.randn(3, 4),
    "score": torch.rand(3),
    "label": torch.tensor([1, -1, 1]),
}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "r.safetensors"
    write_tensors(path, REPRESENTATIVES, TENSORS, {"seed": "3"})
    tensors, metadata = read_tensors(path, REPRESENTATIVES)
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert metadata["seed"] == "3"
    assert metadata["kind"] == "representatives"
    assert metadata["shape.representatives"] == "[3, 4]"
    assert list(path.parent.iterdir()) == [path]
    first = path.read_bytes()
    for _ in range(5):
        write_tensors(path, REPRESENTATIVES, dict(reversed(TENSORS.items())), {"seed": "3"})
        assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": torch.rand(2)}, "k should be 3"),
        ({"score": torch.rand(3, 1)}, "expected \\(k\\)"),
        ({"score": torch.tensor([1.0, torch.nan, 0])}, "'score' holds NaN"),
        ({"label": torch.rand(3)}, "'label' has dtype torch.float32"),
        ({"score": torch.arange(3)}, "'score' has dtype torch.int64"),
        (dict.fromkeys(TENSORS, torch.zeros(0)), "shape \\(0,\\)"),
        ({"score": None}, "lacks the tensor 'score'"),
    ],
)
def test_broken_tensors_are_neither_written_nor_read(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.safetensors"
    broken = {name: value for name, value in {**TENSORS, **change}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        write_tensors(path, REPRESENTATIVES, broken, {})
    assert not list(tmp_path.iterdir())
    save_file(broken, str(path), metadata={"kind": "representatives", "schema_version": "1"})
    with pytest.raises(InputError, match=message):
        read_tensors(path, REPRESENTATIVES)


def test_other_files_are_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "r.safetensors"
    with pytest.raises(InputError, match="no representatives file at"):
        read_tensors(path, REPRESENTATIVES)
    save_file(TENSORS, str(path))
    with pytest.raises(InputError, match="unlabelled tensors"):
        read_tensors(path, REPRESENTATIVES)
    save_file(TENSORS, str(path), metadata={"kind": "representatives", "schema_version": "0"})
    with pytest.raises(InputError, match="schema version 0"):
        read_tensors(path, REPRESENTATIVES)
    whole = path.read_bytes()
    for size in (0, 5, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="not a readable safetensors file"):
            read_tensors(path, REPRESENTATIVES)


def test_a_failed_write_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError, match="in the middle"), atomic_path(path) as temporary:
        _write_half(temporary)
    assert read_json(path, what="file", made_by="") == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="cannot write"), atomic_path(path / "below"):
        pass


def _write_half(path: Path) -> None:
    path.write_text("half")
    raise RuntimeError("stopped in the middle")


class _Malicious:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("form", ["torch", "pickle", "bytes", "empty", "number"])
def test_checkpoints_are_never_executed(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "probe.ckpt"
    if form == "torch":
        torch.save({"state_dict": _Malicious()}, path)
    elif form == "number":
        torch.save(3, path)
    else:
        content = {"pickle": pickle.dumps(_Malicious()), "bytes": b"not a file", "empty": b""}
        path.write_bytes(content[form])
    with pytest.raises(InputError, match=r"probe\.ckpt") as refusal:
        read_state_dict(path, what="probe checkpoint", made_by="")
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "executed").exists()


def test_weights_with_nan_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"0.weight": torch.tensor([[1.0, torch.inf]])}, str(path))
    with pytest.raises(InputError, match=r"'0\.weight' holds NaN or infinity"):
        read_state_dict(path, what="probe checkpoint", made_by="")


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    """But not what another process writes now, and no file of the user's."""
    path = tmp_path / "[x].json"
    names = {}
    for name in ("old", "now"):
        with atomic_path(path) as temporary:
            names[name] = temporary.name
    others = ["[x].json.abcdefgh.json", ".y.json.abcdefgh.json", ".[x].json.notes.json"]
    for name in (*names.values(), *others):
        (tmp_path / name).touch()
        if name != names["now"]:
            os.utime(tmp_path / name, (0, 0))
    write_json(path, 1)
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, names["now"], *others}
