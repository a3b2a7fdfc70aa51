"""Never a traceback, never a hang, never a wrong number in silence: one line that helps."""

import contextlib
import inspect
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import datamodules
import lightning_modules
from artifacts.errors import InputError
from artifacts.files import read_json
from artifacts.tensors import CANDIDATES, EVALUATION, REPRESENTATIVES, check_tensors, read_tensors
from attacks.similarity import nearest_by_cosine
from commands.pipeline import Stage, pipeline
from lightning_modules.victim import load_probe
from models.patch_masking import masking_from_noise
from tests import bad_input
from tests.bad_input import ARTIFACTS, FILES, OPTIONS, PIPELINES, Case
from tests.conftest import (
    REPOSITORY,
    SMALL_ATTACK,
    SMALL_PROBE,
    quiet,
    random_image_folder,
    run_cli,
)

CONFIG = f"--config={REPOSITORY}/configs/quickstart"


def one_line(words: list[str]) -> str:
    """The line that a command says before it fails."""
    stderr, stdout = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(stdout):
        code = run_cli(*words)
    lines = [line for line in stderr.getvalue().splitlines() if line.startswith("error: ")]
    assert code == 1, stderr.getvalue()
    assert len(lines) == 1, stderr.getvalue()
    return lines[0]


@pytest.mark.parametrize("case", OPTIONS, ids=lambda case: " ".join([case.stage, *case.given])[:70])
def test_options(case: Case, small_probe: Path, small_candidates: Path, tmp_path: Path) -> None:
    root = quiet(tmp_path / "run")
    folder = random_image_folder(tmp_path / "images", {"cats": 4, "dogs": 4})
    stages = {
        "probe": ["fit", f"{CONFIG}/probe.yaml", *root, *SMALL_PROBE],
        "images": [
            *("fit", f"{CONFIG}/probe.yaml", *root, "--data=datamodules.EmbeddingsDataModule"),
            "--data.images=datamodules.ImageFolderDataModule",
            *(f"--data.images.root={folder}", "--data.images.image_size=8", "--data.num_train=4"),
            *("--data.backbone=identity", f"--data.cache_dir={tmp_path}/cache"),
        ],
        "attack": [
            *("fit", f"{CONFIG}/reconstruct.yaml", *root, *SMALL_ATTACK),
            f"--model.probe={small_probe}",
        ],
        "select": [
            *("predict", f"{CONFIG}/select.yaml", *root),
            f"--data.candidates={small_candidates}",
        ],
        "autoencoder": ["fit", f"{CONFIG}/mae.yaml", *root],
        "membership": [
            *("test", f"{CONFIG}/membership_data.yaml", f"{CONFIG}/membership_attack.yaml", *root),
        ],
    }
    assert case.says in one_line([*stages.get(case.stage, [case.stage]), *case.given])
    made = {path.suffix for path in tmp_path.rglob("*")}
    # A search that was cut short keeps what it continues from.
    assert not made & (
        {".safetensors"} if "max_time" in case.given[0] else {".safetensors", ".ckpt"}
    )


@pytest.mark.parametrize("command", ["fit", "pipeline"])
@pytest.mark.parametrize(("mistake", "content", "says"), FILES, ids=[case[0] for case in FILES])
def test_config_files(
    mistake: str, content: bytes, says: str, command: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    line = one_line([command, f"--config={path}"])
    assert says in line
    if says != "frobnicate":
        assert str(path) in line
        assert line == one_line([command, "--config", str(path)])


@pytest.mark.parametrize(("mistake", "content", "says"), PIPELINES, ids=[c[0] for c in PIPELINES])
def test_pipelines(mistake: str, content: dict[str, object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "inner" / "mine.yaml"
    path.parent.mkdir()
    bad_input.pipeline_file(content, path)
    assert says in one_line(["pipeline", f"--config={path}"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["inner"]


@pytest.mark.parametrize(("mistake", "change", "says"), ARTIFACTS, ids=[c[0] for c in ARTIFACTS])
def test_artifacts(
    mistake: str, change: bad_input.Change, says: str, small_candidates: Path, tmp_path: Path
) -> None:
    path = tmp_path / "candidates.safetensors"
    bad_input.changed_candidates(small_candidates, change, path)
    with pytest.raises(InputError, match=re.escape(says)) as raised:
        read_tensors(path, CANDIDATES)
    assert str(path) in str(raised.value)


def test_the_page_is_the_table() -> None:
    """``python -m tests.bad_input`` writes it anew."""
    assert (REPOSITORY / "docs/bad_input.md").read_text(encoding="utf-8") == bad_input.page()


# Random input. Deterministic, so that CI says the same every time.
random = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64]
VALUES = st.sampled_from([0.0, 1.0, -1.0, 1e38, float("nan"), float("inf"), -2.0])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    filled = torch.full(shape, draw(VALUES), dtype=torch.float64)
    return filled.to(draw(st.sampled_from(DTYPES)))


T = TypeVar("T")


def unless_refused(read: Callable[[], T]) -> T | None:
    """What ``read`` returns, or None if the user is told what is wrong, in one line."""
    with contextlib.suppress(InputError):
        return read()
    return None


NAMES = st.sampled_from(["candidates", "multipliers", "labels", "residual", "draw", "ünï", "label"])


@random
@given(content=st.dictionaries(NAMES, tensors(), max_size=6), schema=st.sampled_from([0, 1, 2]))
def test_any_tensors_are_right_or_refused(
    content: dict[str, torch.Tensor], schema: int, tmp_path: Path
) -> None:
    kind = [CANDIDATES, REPRESENTATIVES, EVALUATION][schema]
    path = tmp_path / "any.safetensors"
    save_file(content, str(path), metadata={"kind": kind.kind, "schema_version": "1"})
    read = unless_refused(lambda: read_tensors(path, kind)[0])
    if read is None:
        return
    check_tensors("x", kind, read)
    assert all(bool(torch.isfinite(value).all()) for value in read.values())
    assert all(len(read[name]) > 0 for name in kind.shapes)


@random
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".ckpt", ".safetensors", ".json"]))
def test_any_bytes_are_refused(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_probe(path)
    with contextlib.suppress(InputError):
        read_json(path, what="file", made_by="nothing")
    with pytest.raises(InputError):
        read_tensors(path, CANDIDATES)


@random
@given(
    state=st.dictionaries(
        st.sampled_from(["0.weight", "2.weight", "0.bias", "mean", "std", "layers.1.weight", "x"]),
        tensors(),
        max_size=5,
    )
)
def test_any_state_dict_is_a_probe_or_refused(
    state: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "any.safetensors"
    save_file(state, str(path))
    probe = unless_refused(lambda: load_probe(path))
    assert probe is None or bool(torch.isfinite(probe(torch.zeros(1, probe.in_features))).all())


@random
@given(name=st.text(max_size=12))
def test_stages_stay_inside_the_run(name: str, tmp_path: Path) -> None:
    stages = {name: Stage("report")}
    made: list[str] = []
    with contextlib.suppress(InputError):
        pipeline(str(tmp_path / "run"), stages, dispatch=made.extend)
        assert (tmp_path / "run" / name).resolve().parent == (tmp_path / "run").resolve()
    assert {entry.name for entry in tmp_path.iterdir()} <= {"run"}


@random
@given(text=st.text(max_size=40))
def test_any_text_as_a_config_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(text, encoding="utf-8")
    one_line(["pipeline", f"--config={path}"])


REQUIRED: dict[str, Any] = {
    "in_features": 4,
    "num_classes": 3,
    "maxclust": [3],
    "shadows": ["x"],
    "references": ["x"],
}


def float_options() -> list[tuple[type, str]]:
    """Every option of a shipped class that takes a real number."""
    return [
        (owner, name)
        for module in (lightning_modules, datamodules)
        for owner in (getattr(module, name) for name in module.__all__)
        for name, parameter in inspect.signature(owner).parameters.items()
        if re.search(r"\bfloat\b", str(parameter.annotation))
        and "Literal" not in str(parameter.annotation)
        and owner is not datamodules.EmbeddingsDataModule
    ]


@pytest.mark.parametrize(
    ("owner", "name"), float_options(), ids=lambda value: getattr(value, "__name__", value)
)
def test_no_number_is_nan_or_infinite(owner: type, name: str) -> None:
    parameters = inspect.signature(owner).parameters
    needed = {
        key: REQUIRED.get(key, "x")
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    owner(**needed)
    pair = re.search("tuple|Sequence", str(parameters[name].annotation))
    for value in (math.nan, math.inf, -math.inf):
        if name == "memory_limit" and value == math.inf:
            continue
        with pytest.raises(InputError):
            owner(**{**needed, name: (value, value) if pair else value})


@random
@given(ratio=st.floats(), images=st.integers(1, 3), patches=st.integers(1, 12))
def test_any_mask_ratio_removes_some_patches_or_is_refused(
    ratio: float, images: int, patches: int
) -> None:
    noise = torch.rand(images, patches, generator=torch.Generator().manual_seed(0))
    try:
        masking = masking_from_noise(noise, ratio)
    except ValueError:
        assert not 0 < ratio < 1 or int(patches * (1 - ratio)) in (0, patches)
        return
    removed = masking.mask.sum(1)
    assert (removed == patches - int(patches * (1 - ratio))).all()
    assert 0 < int(removed[0]) < patches


@random
@given(
    values=st.lists(st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e18]), min_size=6, max_size=12),
    width=st.integers(1, 3),
)
def test_similarities_are_those_of_directions(values: list[float], width: int) -> None:
    """Zero vectors, one vector, tiny and huge ones."""
    vectors = torch.tensor(values[: len(values) // width * width], dtype=torch.float64)
    vectors = vectors.view(-1, width)
    similarity, index = nearest_by_cosine(vectors[:1], vectors)
    assert -1 <= float(similarity) <= 1 + 1e-12
    assert int(index) < len(vectors)
    # A vector is most like itself, and one without a direction like nothing.
    norm = float(vectors[0].norm())
    if norm == 0 or norm > 1e-12:
        assert float(similarity) == pytest.approx(float(norm > 0))


def test_a_probe_of_one_class_is_refused(tmp_path: Path) -> None:
    random_image_folder(tmp_path / "photos", {"one": 6})
    words = [
        *("fit", f"--config={REPOSITORY}/configs/transfer_reconstruction/probe_multiclass.yaml"),
        "--data=datamodules.EmbeddingsDataModule",
        "--data.images=ImageFolderDataModule",
        *(f"--data.images.root={tmp_path}/photos", "--data.images.image_size=8"),
        *("--data.backbone=identity", f"--data.cache_dir={tmp_path}/cache", "--data.num_train=4"),
        *quiet(tmp_path / "run"),
    ]
    assert "have the label 0: there is nothing to tell apart" in one_line(words)
