"""What can be wrong with what a user gives, and what the user is told.

``docs/bad_input.md`` is this table: ``python -m tests.bad_input`` writes it, a test compares.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from artifacts.tensors import CANDIDATES, read_tensors
from tests.odd_images import IMAGES


@dataclass(frozen=True)
class Case:
    """One mistake.

    Attributes:
        stage: What is run: ``probe``, ``images`` (a probe on embeddings of a folder of images),
            ``attack``, ``select``, ``autoencoder`` (its training), ``membership``, or a tool by its
            name.
        given: Options, as on the command line.
        says: Part of the one line that the user sees.
        mistake: In words, if the options do not say it.
    """

    stage: str
    given: tuple[str, ...]
    says: str
    mistake: str = ""


HUGE = "1000000000000"

OPTIONS = [
    Case("probe", ("--data.num_train=0",), "cannot be balanced over 2 labels"),
    Case("probe", ("--data.num_train=21",), "cannot be balanced over 2 labels"),
    Case("probe", (f"--data.num_train={HUGE}",), "label -1 has 906 samples"),
    Case("probe", ("--data.num_train=nan",), "Expected a <class 'int'>"),
    Case("probe", ("--data.seed=-1",), "seed must be from 0 to 2^63 - 1, got -1"),
    Case("probe", ("--model.in_features=0",), "layer widths must be positive"),
    Case("probe", ("--model.in_features=63",), "set model.in_features to 64"),
    Case("probe", ("--model.hidden=[-3]",), "layer widths must be positive"),
    Case("probe", (f"--model.hidden=[{HUGE}]",), "there is not enough memory"),
    Case("probe", ("--model.learning_rate=0",), "learning_rate must be positive"),
    Case("probe", ("--model.learning_rate=.nan",), "all finite"),
    Case("probe", ("--model.weight_decay=.inf",), "all finite"),
    Case("probe", ("--model.init_scale=.nan",), "all finite"),
    Case("probe", ("--model.epochs_per_step=0",), "epochs_per_step must be at least 1"),
    Case("probe", ("--trainer.max_epochs=0",), "fit had nothing to do"),
    Case("probe", ("--trainer.max_epochs=-2",), "must be a non-negative integer or -1"),
    Case("probe", ("--trainer.max_steps=0",), "fit had nothing to do"),
    Case("probe", ("--trainer.limit_train_batches=0",), "fit had nothing to do"),
    Case("probe", ("--trainer.check_val_every_n_epoch=0",), "must be at least 1"),
    Case("probe", ("--trainer.devices=100000",), "more than the"),
    Case("probe", ("--trainer.strategy=nonsense",), "invalid strategy name"),
    Case("probe", ("--trainer.callbacks=callbacks.CandidateWriter",), "goes with CandidateSearch"),
    Case("probe", ("--trainer.default_root_dir= ",), "default_root_dir is blank"),
    Case("probe", ("--trainer.default_root_dir=a\0b",), "cannot write to the directory"),
    Case("probe", ("--ckpt_path=",), "no checkpoint of a run at"),
    Case("probe", ("--ckpt_path=hpc",), "no checkpoint of a run at hpc"),
    Case("probe", ("--seed_everything=99999999999",), "not in bounds"),
    Case("probe", ("--data=datamodules.NoSuch",), "NoSuch"),
    Case("attack", (f"--model.num_draws={HUGE}",), "the candidates need"),
    Case("attack", (f"--model.num_candidates={HUGE}",), "there is not enough memory"),
    Case("attack", ("--model.num_candidates=0",), "positive multiple of 2"),
    Case("attack", ("--model.iterations=0",), "must be at least 1"),
    Case("attack", ("--model.learning_rate=[.nan, 1]",), "learning_rate must be a range"),
    Case("attack", ("--model.learning_rate=[1, .inf]",), "learning_rate must be a range"),
    Case("attack", ("--model.init_std=[1, 2, 3]",), "Expected a tuple with 2 elements"),
    Case("attack", ("--model.lambda_min=[1, 0]",), "lambda_min must be a range"),
    Case("attack", ("--model.alpha_annealing=.nan",), "alpha_annealing must be in (0, 1]"),
    Case("attack", ("--model.multiplier_penalty=-1",), "must be finite and not negative"),
    Case("attack", ("--model.multiplier_learning_rate=.nan",), "must be finite and not negative"),
    Case("attack", ("--model.relu_alpha=[1e300, 1e308]",), "all 3 draws diverged"),
    Case("attack", ("--model.first_draw=9223372036854775807",), "numbers of 64 bits"),
    Case("attack", ("--model.part=3/3",), "parts are numbered from 0 to 2"),
    Case("attack", ("--model.part=0/9",), "3 draws cannot be split into 9 parts"),
    Case("attack", ("--model.probe=",), "no probe checkpoint at"),
    Case("attack", ("--model.probe=/",), "no probe checkpoint at /"),
    Case("attack", (f"--model.probe={'a' * 5000}",), "File name too long"),
    Case("attack", ("--model.probe=ünï/cödé.ckpt",), "no probe checkpoint at ünï/cödé.ckpt"),
    Case("attack", ("--trainer.max_time=00:00:00:00",), "stopped after 0 of 100 iterations"),
    Case("select", ("--model.height=-1",), "height is a cosine distance, from 0 to 2"),
    Case("select", ("--model.height=3",), "height is a cosine distance, from 0 to 2"),
    Case("select", ("--model.height=.nan",), "height is a cosine distance, from 0 to 2"),
    Case("select", ("--model.maxclust=0",), "maxclust must be at least 1"),
    Case("select", ("--model.top=0",), "must be at least 1"),
    Case("select", (f"--model.min_draws={HUGE}",), "no cluster has candidates of"),
    Case("select", ("--trainer.limit_predict_batches=0",), "predict had nothing to do"),
    Case("select", ("--data.candidates=",), "no candidates file at"),
    Case("autoencoder", ("--model.mask_ratio=0",), "mask_ratio must be in (0, 1)"),
    Case("autoencoder", ("--model.mask_ratio=1",), "mask_ratio must be in (0, 1)"),
    Case("autoencoder", ("--model.mask_ratio=.nan",), "mask_ratio must be in (0, 1)"),
    Case("autoencoder", ("--model.seed=-1",), "seed must be from 0 to 2^63 - 1, got -1"),
    Case("autoencoder", ("--data.seed=-1",), "seed must be from 0 to 2^63 - 1, got -1"),
    Case("autoencoder", ("--data.images.seed=-1",), "seed must be from 0 to 2^63 - 1, got -1"),
    Case("autoencoder", ("--data.memory_limit=-1",), "memory_limit must not be negative"),
    Case("autoencoder", ("--data.memory_limit=.nan",), "memory_limit must not be negative"),
    Case("autoencoder", ("--data.batch_size=0",), "batch_size and num_val must be at least 1"),
    Case("images", ("--data.images.root= ",), "root is blank"),
    Case("images", ("--data.images.task=[0, 1]",), "classes are named, not numbered: 'cats', "),
    Case("images", ("--data.images.task=[cat, dogs]",), "no class 'cat'; the closest of 2 is"),
    Case("images", ("--data.cache_dir=",), "data.cache_dir must be a folder for embeddings"),
    Case("images", ("--data.cache_dir=README.md",), "data.cache_dir must be a folder"),
    Case("images", ("--data.backbone=mae",), "give a masked autoencoder's file as `weights`"),
    Case(
        "images",
        ("--data.backbone=mae", "--data.weights=nowhere"),
        "no weights file of mae at nowhere; give another one as data.weights",
    ),
    Case(
        "images",
        ("--data.backbone=clip_vit_l14", "--data.images.image_size=13"),
        "image_size 13 is no multiple of the patch size 14",
    ),
    Case("autoencoder", ("--model.mask_ratio=0.999",), "patches visible; take one below"),
    Case("membership", ("--model.attacks=[]",), "must name at least one attack"),
    Case("membership", ("--model.attacks=[paper, paper]",), "each once"),
    Case("membership", ("--model.seed=-1",), "seed must be from 0 to 2^63 - 1"),
    Case("membership", ("--data.seed=-1",), "seed must be from 0 to 2^63 - 1"),
    Case("report", ("--metrics=",), "no metrics file at"),
    Case("report", ("--metrics=/",), "no metrics file at /"),
    Case("report", ("--metrics=x", "--output= "), "output ' ' names no file"),
    Case("report", ("--metrics=x", "--output=README.md"), "is there and is no HTML page"),
    Case("report", ("--numbers=nowhere",), "no table file at nowhere"),
    Case("report", ("--numbers=x", "--figure=fig99"), "there is no figure 'fig99'; choose one of"),
    Case("report", ("--metrics=x", "--figure=fig12"), "--figure says what --numbers is of"),
    Case("table", ("--metrics=x", "--columns={}", "--output= "), "output ' ' names no file"),
    Case("table", ("--metrics=x", "--columns={}", "--output=."), "output '.' names no file"),
    Case("table", ("--metrics=x", "--columns={}", "--output=t.json"), "is the Markdown file"),
    Case("merge", ("--parts=", "--output= "), "output ' ' names no file"),
    Case("merge", ("--parts=", "--output=x"), "no files match"),
    Case("merge", ("--parts=/nowhere/*", "--output=x"), "no files match /nowhere/*"),
]

# Content of a config file, given to `fit` and to `pipeline`.
FILES: list[tuple[str, bytes, str]] = [
    ("a bracket that is not closed", b"model: [1, 2\ntrainer: {", "is not a YAML file"),
    ("a tab as indentation", b"model:\n\t- x", "is not a YAML file"),
    ("bytes that are no text", bytes(range(128, 256)), "is not a YAML file"),
    ("a number", b"42", "is no config: it holds no options"),
    ("nothing", b"", "is no config: it holds no options"),
    ("nested 3,000 deep", b"a: " + b"[" * 3000, "is not a YAML file"),
    ("a tag that calls a function", b"a: !!python/object/apply:os.abort []", "is not a YAML file"),
    ("an unknown option", b"frobnicate: 1", "frobnicate"),
]

PIPELINES: list[tuple[str, dict[str, Any], str]] = [
    *(
        (f"a stage named {name!r}", {"stages": {name: {"command": "report"}}}, "cannot be named")
        for name in ("../../evil", "/tmp", "a/b", ".", "..", "", " ", "a.previous", "a\0")
    ),
    ("no stages", {"stages": {}}, "has no stages"),
    (
        "a grid without a name",
        {"grid": {"seed": [0]}, "stages": {"a_{n}_{seed}": {"command": "report"}}},
        "the grid has no values for 'n'",
    ),
    ("a command that is none", {"stages": {"a": {"command": "rm"}}}, "Got value: rm"),
    ("a stage that is nothing", {"stages": {"a": None}}, "stages"),
    ("stages as a list", {"stages": [1]}, "Expected a <class 'dict'>"),
    ("a blank run", {"run": " ", "stages": {"a": {"command": "report"}}}, "run is blank"),
    (
        "a run that cannot be",
        {"run": "a\0b", "stages": {"a": {"command": "report"}}},
        "cannot write to the directory",
    ),
    (
        "a blank config",
        {"stages": {"a": {"command": "fit", "config": [""]}}},
        "no config file at",
    ),
    (
        "a number as a name",
        {"stages": {1: {"command": "report", "options": {"metrics": "nowhere"}}}},
        "no metrics file at nowhere",
    ),
]

Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]

# What was done to a candidates file that is then given to `select`.
ARTIFACTS: list[tuple[str, Change, str]] = [
    ("candidates are NaN", lambda t: {"candidates": t["candidates"] * torch.nan}, "holds NaN"),
    ("multipliers are infinite", lambda t: {"multipliers": t["multipliers"] / 0}, "infinity"),
    ("candidates are integers", lambda t: {"candidates": t["candidates"].long()}, "has dtype"),
    (
        "candidates are complex",
        lambda t: {"candidates": t["candidates"].to(torch.complex64)},
        "has dtype",
    ),
    ("labels are floats", lambda t: {"labels": t["labels"].float()}, "has dtype"),
    ("labels are bytes", lambda t: {"labels": t["labels"].byte()}, "has dtype"),
    ("labels are ±5", lambda t: {"labels": 5 * t["labels"]}, "-1 and 1, or classes from 0"),
    ("labels are -1 and 0", lambda t: {"labels": t["labels"].clamp(max=0)}, "classes from 0"),
    ("a draw is missing", lambda t: {"residual": t["residual"][1:]}, "but R should be"),
    ("fewer candidates", lambda t: {"candidates": t["candidates"][:, 1:]}, "but m should be"),
    ("no candidates (m = 0)", lambda t: {"candidates": t["candidates"][:, :0]}, "at least 1"),
    ("no features", lambda t: {"candidates": t["candidates"][..., :0]}, "at least 1"),
    ("no draws", lambda t: {"candidates": t["candidates"][:0]}, "at least 1"),
    ("a dimension less", lambda t: {"candidates": t["candidates"][0]}, "expected (R m D)"),
    ("a history of other draws", lambda t: {"history": t["history"][:, 1:]}, "but R should be"),
    ("a negative residual", lambda t: {"residual": -t["residual"]}, "has values from"),
    ("a negative draw", lambda t: {"draw": t["draw"] - 9}, "has values from"),
]


def changed_candidates(good: Path, change: Change, path: Path) -> None:
    """Writes a candidates file with a mistake in it."""
    tensors, metadata = read_tensors(good, CANDIDATES)
    tensors = {name: value.contiguous() for name, value in {**tensors, **change(tensors)}.items()}
    save_file(tensors, str(path), metadata=metadata)


def pipeline_file(content: dict[str, Any], path: Path) -> None:
    """Writes a pipeline with a mistake in it."""
    path.write_text(yaml.safe_dump({"run": str(path.parent / "run"), **content}), encoding="utf-8")


def page() -> str:
    """The table as a page of the documentation."""

    def row(*cells: str) -> str:
        printable = (cell.replace("\0", "\\0").replace("|", "\\|") for cell in cells)
        return "| " + " | ".join(printable) + " |"

    def short(words: tuple[str, ...]) -> str:
        return " ".join(word if len(word) < 60 else word[:20] + "…" for word in words)

    lines = [
        "# What is said about bad input?",
        "",
        "Each of these ends with exit code 1 and one line on stderr that holds the words on the",
        "right; no result is written, only logs, and what was there stays. `--debug` shows where",
        "it came from.",
        "Beyond the table, `tests/test_bad_input.py` tries random tensors, names and text.",
        "",
        "## Options",
        "",
        "| command | given | says |",
        "| --- | --- | --- |",
        *(row(case.stage, f"`{short(case.given)}`", case.says) for case in OPTIONS),
        "",
        "## Config files",
        "",
        "| content | says, after the file's name |",
        "| --- | --- |",
        *(row(mistake, says) for mistake, _, says in FILES),
        "",
        "## Pipelines",
        "",
        "| mistake | says |",
        "| --- | --- |",
        *(row(mistake, says) for mistake, _, says in PIPELINES),
        "",
        "## Artifacts",
        "",
        "| in a candidates file | says, after the file's name |",
        "| --- | --- |",
        *(row(mistake, says) for mistake, _, says in ARTIFACTS),
        "",
        "Files that would run code when unpickled are refused everywhere, as truncated ones are.",
        "",
        "## Images",
        "",
        "One such file among good ones, in a folder that any data module of images reads.",
        "",
        "| file | what becomes of it |",
        "| --- | --- |",
        *(row(case.what, case.becomes or f"refused: {case.says}") for case in IMAGES),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    Path("docs/bad_input.md").write_text(page(), encoding="utf-8")
