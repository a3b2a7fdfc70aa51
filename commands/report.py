"""The HTML report about finished runs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import torch

from artifacts.errors import InputError
from artifacts.files import atomic_path, read_json
from artifacts.tensors import (
    EVALUATION,
    INVERSION_EVALUATION,
    MEMBERSHIP_SCORES,
    package_version,
    read_tensors,
)
from attacks.membership import roc_curve
from commands.table import find_runs
from reporting.inversion_section import inversion_section
from reporting.membership_section import membership_section
from reporting.page import Page, Section, render
from reporting.reconstruction_section import reconstruction_section

MADE_BY = "a `test` stage makes one, as with configs/quickstart/evaluate.yaml"


def report(
    metrics: str | list[str], output: str | None = None, inversions: str | None = None
) -> None:
    """Writes one self-contained HTML page about finished evaluations.

    Args:
        metrics: The ``metrics.json`` of an evaluation stage in its run directory, or several;
            ``<name>`` in a path stands for anything, as for ``table``.
        output: The page to write; by default ``report.html`` beside the first.
        inversions: The ``inversion_metrics.json`` of inverted images, shown first.

    Raises:
        InputError: An evaluation is not finished or broken, or the page cannot be written.
    """
    given = [metrics] if isinstance(metrics, str) else metrics
    paths = _paths(given if inversions is None else [inversions, *given])
    sections = [_section(path) for path in paths]
    target = Path(output) if output is not None else paths[0].parent / "report.html"
    titles = list(dict.fromkeys(section.title for section in sections))
    page = Page(
        title=titles[0] if len(titles) == 1 else "What trained models give away",
        sections=[
            replace(section, title=f"{section.title}: {path.parent.name}")
            for section, path in zip(sections, paths, strict=True)
        ],
        versions=f"afterimage {package_version()}, torch {torch.__version__}, "
        f"lightning {lightning.__version__}",
        configs=_configs(paths),
    )
    with atomic_path(target) as temporary:
        temporary.write_text(render(page), encoding="utf-8")
    for section in sections:
        sys.stdout.write(section.headline + "\n")
    sys.stdout.write(f"the report is {target}\n")


def _paths(given: Sequence[str]) -> list[Path]:
    paths = [path for text in given for path in (find_runs(text) if "<" in text else [Path(text)])]
    if not paths:
        raise InputError("--metrics names no file")
    return paths


def _section(path: Path) -> Section:
    """What the page says about one metrics file and the tensors beside it."""
    content: Any = read_json(path, what="metrics file", made_by=MADE_BY)
    try:
        if isinstance(content, dict) and "attacks" in content:
            section = _membership(content, path.parent)
        elif isinstance(content, dict) and {"num_train", "candidates"} <= content.keys():
            tensors, _ = read_tensors(path.parent / "evaluation.safetensors", EVALUATION)
            section = reconstruction_section(content, tensors)
        elif isinstance(content, dict) and {"mean", "images"} <= content.keys():
            file = path.parent / "inversion_evaluation.safetensors"
            section = inversion_section(content, read_tensors(file, INVERSION_EVALUATION)[0])
        else:
            raise InputError(f"{path} is not the metrics file of an evaluation; {MADE_BY}")
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not a whole metrics file of an evaluation (at {error}); {MADE_BY}"
        ) from error
    return section


def _membership(content: dict[str, Any], directory: Path) -> Section:
    tensors, facts = read_tensors(directory / "scores.safetensors", MEMBERSHIP_SCORES)
    names = json.loads(facts["attacks"])
    pairs = zip(tensors["members"], tensors["non_members"], strict=True)
    scores = dict(zip(names, pairs, strict=True))
    return membership_section(
        content, scores, {name: roc_curve(*both) for name, both in scores.items()}
    )


def _configs(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Saved configs of the experiments that the metrics are of."""
    roots = list(dict.fromkeys(path.parent.parent for path in paths))
    return [
        (str(config.relative_to(root.parent)), config.read_text(encoding="utf-8"))
        for root in roots
        for config in sorted(root.glob("*/config*.yaml"))
        if ".previous" not in config.parent.name
    ]
