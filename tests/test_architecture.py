"""Lower rooms do not import higher ones, and heavy libraries are imported where they are used."""

import ast
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

# Each room may import the rooms named beside it, and itself.
ALLOWED = {
    "artifacts": set(),
    "attacks": set(),
    "models": {"artifacts"},  # For the files of weights that users give.
    "reporting": set(),
    "datamodules": {"artifacts", "attacks", "models"},
    "lightning_modules": {"artifacts", "attacks", "models"},
    "callbacks": {
        "artifacts",
        "attacks",
        "models",
        "reporting",
        "datamodules",
        "lightning_modules",
    },
    "commands": {"artifacts", "attacks", "models", "reporting", "callbacks"},
}
HEAVY = ("timm", "open_clip", "diffusers", "sklearn", "reporting.figures")


def imports_of(path: str) -> set[str]:
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_only_lower_rooms(room: str) -> None:
    files = sorted((REPOSITORY / room).rglob("*.py"))
    assert files
    for file in files:
        path = str(file.relative_to(REPOSITORY))
        used = imports_of(path) & {*ALLOWED, "main", "tests", "benchmarks"}
        assert used <= ALLOWED[room] | {room}, f"{path} imports {used - ALLOWED[room] - {room}}"


@pytest.mark.parametrize("room", ["attacks", "models"])
def test_science_knows_neither_lightning_nor_files(room: str) -> None:
    for file in sorted((REPOSITORY / room).rglob("*.py")):
        used = imports_of(str(file.relative_to(REPOSITORY)))
        assert not used & {"lightning", "pathlib", "json", "safetensors", "tensorboard"}, file


def test_only_evaluation_compares_with_the_truth() -> None:
    """Counts and the selection of section 3.3 need the training set: no attack may call them."""
    # All of these modules but what needs no training sample.
    evaluation, harmless = {"attacks.recovery", "attacks.attackability"}, {"rescaled"}
    allowed = {"reconstruction_evaluation.py", "probe_mlp.py"}
    for room in ("attacks", "models", "lightning_modules", "datamodules"):
        for file in sorted((REPOSITORY / room).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            used = {
                alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module in evaluation
                for alias in node.names
            }
            assert used <= harmless or file.name in allowed, file


def test_main_is_wiring() -> None:
    assert len((REPOSITORY / "main.py").read_text(encoding="utf-8").splitlines()) < 150


def test_help_and_import_load_nothing_heavy() -> None:
    names = (*HEAVY, "torch", "lightning", "matplotlib")
    script = (
        "import sys, main; assert main.main(['--help']) == 0; "
        f"print([name for name in {names!r} if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY
    ).stdout
    assert output.splitlines()[-1] == "[]"


def test_rooms_load_nothing_heavy() -> None:
    # lightning itself brings matplotlib, torchvision and more.
    script = (
        "import sys, callbacks, datamodules, lightning_modules, commands.pipeline; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY
    ).stdout
    assert output.splitlines()[-1] == "[]"
