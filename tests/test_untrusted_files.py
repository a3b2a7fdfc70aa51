"""A file from a stranger runs no code, whatever it is called and wherever it is given.

Every option that takes a file is tried: those of every stage and tool are found by their types and
names, so that a new one is either listed here or fails a test.
"""

import inspect
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import datamodules
import lightning_modules
from artifacts.tensors import INVERSIONS, write_tensors
from commands.merge import merge
from commands.report import report
from models.masked_autoencoder import MaskedAutoencoder
from tests.conftest import (
    REPOSITORY,
    SMALL_ATTACK,
    SMALL_PROBE,
    quiet,
    random_image_folder,
    random_vit,
    run_cli,
)
from tests.stranger_options import NAMES, SAME_AS_ANOTHER, STRANGER_OPTIONS
from tests.unclip_parts import save_tiny_unclip

CONFIG = f"--config={REPOSITORY}/configs/quickstart"


class Payload:
    """Makes a file in the directory ``where`` when it is unpickled."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _run, (str(self.where),)


def _run(where: str) -> None:
    (Path(where) / "payload-was-run").touch()


def _pickled(where: Path) -> bytes:
    return pickle.dumps({"state_dict": {"x": Payload(where)}})


def _saved_by_torch(where: Path) -> bytes:
    buffer = io.BytesIO()
    # What passes for a checkpoint of a run but for one entry.
    content = {"state_dict": {"layers.0.weight": torch.ones(1, 2)}, "hyper_parameters": {}}
    torch.save({**content, "pytorch-lightning_version": "2.6.0", "x": Payload(where)}, buffer)
    return buffer.getvalue()


def _saved_by_old_torch(where: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"state_dict": Payload(where)}, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def _arrays(where: Path) -> bytes:
    """As numpy.savez writes an array of objects."""
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    header += b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("arr_0.npy", header + pickle.dumps(Payload(where)))
    return buffer.getvalue()


def _script(where: Path) -> bytes:
    """TorchScript, which torch.load takes for code of its own kind."""
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), buffer)
    return buffer.getvalue()


def _yaml(where: Path) -> bytes:
    path = f"!!python/object/apply:pathlib.Path ['{where}/payload-was-run']"
    return f"a: !!python/object/apply:pathlib.Path.touch [{path}]".encode()


CONTENTS = {
    "pickle": _pickled,
    "torch": _saved_by_torch,
    "old torch": _saved_by_old_torch,
    "numpy": _arrays,
    "TorchScript": _script,
    "yaml": _yaml,
}
SUFFIXES = [".ckpt", ".pt", ".pth", ".bin", ".safetensors", ".npz", ".json", ".yaml"]

# Option by option: the command line, which misses nothing but the file.
PROBE = ["fit", f"{CONFIG}/probe.yaml", *SMALL_PROBE]
ATTACK = ["fit", f"{CONFIG}/reconstruct.yaml", *SMALL_ATTACK]
EVALUATE = ["test", f"{CONFIG}/evaluate.yaml", "--data.num_train=20"]
OPTIONS: dict[str, list[str]] = {
    "fit --config": ["fit", "--config={file}"],
    "pipeline --config": ["pipeline", "--config={file}"],
    "fit --ckpt_path": [*PROBE, "--ckpt_path={file}"],
    "test --ckpt_path": ["test", f"{CONFIG}/probe_check.yaml", "--ckpt_path={file}"],
    "KKTReconstruction.probe": [*ATTACK, "--model.probe={file}"],
    "ActivationMaximisation.probe": [
        "fit",
        f"--config={REPOSITORY}/configs/transfer_reconstruction/activation_maximisation.yaml",
        "--model.probe={file}",
    ],
    "ReconstructionEvaluation.probe": [*EVALUATE, "--model.probe={file}"],
    "ReconstructionEvaluation.candidates": [
        *(*EVALUATE, "--model.probe={probe}", "--model.candidates={file}"),
    ],
    "ReconstructionEvaluation.representatives": [
        *(*EVALUATE, "--model.probe={probe}", "--model.candidates={candidates}"),
        "--model.representatives={file}",
    ],
    "CandidatesDataModule.candidates": [
        *("predict", f"{CONFIG}/select.yaml", "--data.candidates={file}"),
    ],
    "report.metrics": ["report", "--metrics={file}"],
    "merge.parts": ["merge", "--parts={file}", "--output={root}/merged.safetensors"],
    **STRANGER_OPTIONS,
}
# Options of type str that name no file to read.
NO_FILES = {
    *("KKTReconstruction.part", "ActivationMaximisation.part"),
    *("report.output", "merge.output"),
    *NAMES,
    *SAME_AS_ANOTHER,
}


def string_options() -> set[str]:
    """Every option of a shipped class or tool that takes text of any kind."""
    classes = [
        getattr(module, name)
        for module in (lightning_modules, datamodules)
        for name in module.__all__
    ]
    found = set()
    for function in (*classes, report, merge):
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.annotation not in (str, "str", str | None, "str | None"):
                continue
            # A dataset's root is a folder, and its split is read by the class that all share.
            shared = name == "split" and issubclass(function, datamodules.ImageDataModule)
            owner = "ImageDataModule" if shared else function.__name__
            if name != "root":
                found.add(f"{owner}.{name}")
    return found


def test_every_option_that_takes_a_file_is_tried() -> None:
    assert string_options() <= {*OPTIONS, *NO_FILES}


@pytest.fixture(scope="module")
def places(
    small_probe: Path, small_candidates: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Good files, for what else a command line needs."""
    root = tmp_path_factory.mktemp("places")
    select = ["predict", f"{CONFIG}/select.yaml", f"--data.candidates={small_candidates}"]
    assert run_cli(*select, *quiet(root)) == 0
    torch.manual_seed(0)
    autoencoder = MaskedAutoencoder(32, 8, 3, 16, 1, 2, 8, 1, 2)
    save_file(autoencoder.state_dict(), root / "encoder.safetensors")
    ones = {
        "images": torch.ones(2, 3, 32, 32),
        "label": torch.ones(2, dtype=torch.int64),
        "similarity": torch.ones(2),
    }
    write_tensors(root / "inversions.safetensors", INVERSIONS, ones, {})
    save_tiny_unclip(root / "unclip", 64)
    return {
        "{probe}": small_probe,
        "{candidates}": small_candidates,
        "{representatives}": root / "representatives.safetensors",
        "{photos}": random_image_folder(root / "photos", {"animals": 4, "food": 3, "plants": 3}),
        "{vit}": random_vit(root / "vit.safetensors"),
        "{encoder}": root / "encoder.safetensors",
        "{inversions}": root / "inversions.safetensors",
        "{unclip}": root / "unclip",
    }


@pytest.mark.parametrize("option", OPTIONS)
def test_nothing_is_run_and_one_line_says_so(
    option: str,
    places: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Contents and names in turn: all of either are tried on some option.
    turn = list(OPTIONS).index(option)
    others = [kind for kind in CONTENTS if kind not in ("pickle", "torch")]
    for index, kind in enumerate(("pickle", "torch", others[turn % len(others)])):
        suffix = SUFFIXES[(3 * turn + index) % len(SUFFIXES)]
        path = tmp_path / f"stranger{suffix}"
        path.write_bytes(CONTENTS[kind](tmp_path))
        words = list(OPTIONS[option])
        for place, value in {**places, "{file}": path, "{root}": tmp_path}.items():
            words = [word.replace(place, str(value)) for word in words]
        if words[0] in ("fit", "test", "predict") and len(words) > 2:
            words += quiet(tmp_path / "run")
        capsys.readouterr()
        assert run_cli(*words) == 1, (kind, suffix)
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
        assert len(lines) == 1
        assert str(path) in lines[0] or path.name in lines[0], lines[0]
        assert not (tmp_path / "payload-was-run").exists(), (kind, suffix)


def test_the_payload_would_run(tmp_path: Path) -> None:
    """The test above cannot pass because the payload is harmless."""
    pickle.loads(_pickled(tmp_path))
    assert (tmp_path / "payload-was-run").exists()
