"""The HTML report about finished runs."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import torch

from artifacts.errors import InputError
from artifacts.files import atomic_path, read_json, require_output
from artifacts.tensors import (
    EVALUATION,
    INVERSION_EVALUATION,
    package_version,
    read_tensors,
)
from commands.membership_gains import gains_section
from commands.membership_section import membership_section
from commands.membership_seeds import seeds_section
from commands.paper_tables import paper_table_section
from commands.stages import finished_files
from commands.table import find_runs
from reporting.inversion_section import inversion_section
from reporting.page import DOCTYPE, Page, Section, render
from reporting.reconstruction_overview import overview_section
from reporting.reconstruction_section import reconstruction_section

MADE_BY = "a `test` stage makes one, as with configs/quickstart/evaluate.yaml"


def report(
    metrics: str | list[str] | None = None,
    output: str | None = None,
    inversions: str | None = None,
    table: str | None = None,
    run: str | None = None,
) -> None:
    """Writes one self-contained HTML page about finished evaluations.

    Args:
        metrics: The ``metrics.json`` of an evaluation stage in its run directory, or several;
            ``<name>`` in a path stands for anything, as for the tool ``table``.
        output: The page to write; by default ``report.html`` beside the first, or in ``run``.
        inversions: The ``inversion_metrics.json`` of inverted images, shown first.
        table: ``table2`` … ``table7``, ``fig4`` or ``fig5`` of the membership paper with its own
            figures beside; or ``seeds``, the mean over seeds, or ``gains``, what each step of the
            default attack gains; of the runs in ``run``.
        run: The directory of the pipeline that the table is about.

    Raises:
        InputError: An evaluation is not finished or broken, or the page cannot be written.
    """
    if (table is None) != (run is None) or (metrics is None and table is None):
        raise InputError("report needs --metrics, or --table and --run")
    if output is not None:
        _require_page(output)
    sections: dict[Path, Section] = {}
    if table is not None and run is not None:
        own = {"seeds": seeds_section, "gains": gains_section}
        section = own[table](run) if table in own else paper_table_section(table, run)
        sections[Path(run) / table] = section
    given = [metrics] if isinstance(metrics, str) else metrics or []
    paths = _paths(given if inversions is None else [inversions, *given])
    for path in paths:
        sections[path.parent] = _section(path)
    target = Path(output) if output is not None else next(iter(sections)) / "report.html"
    if output is None and run is not None:
        target = Path(run) / "report.html"
    groups = _over_seeds(paths)
    if any(len(runs) > 1 for runs in groups.values()):
        try:
            overview = overview_section(groups)
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"the runs cannot be averaged ({error!r}); {MADE_BY}") from error
        sections = {paths[0].parent.parent / "all": overview, **sections}
    titles = list(dict.fromkeys(section.title for section in sections.values()))
    page = Page(
        title=titles[0] if len(titles) == 1 else "What trained models give away",
        sections=[
            replace(section, title=f"{section.title}: {directory.name}")
            for directory, section in sections.items()
        ],
        versions=f"afterimage {package_version()}, torch {torch.__version__}, "
        f"lightning {lightning.__version__}",
        configs=_configs(list(sections)),
    )
    with atomic_path(target) as temporary:
        temporary.write_text(render(page), encoding="utf-8")
    for section in sections.values():
        sys.stdout.write("\n".join(section.lines or [section.headline]) + "\n")
    sys.stdout.write(f"the report is {target}\n")


def _require_page(output: str) -> None:
    """Refuses to write the page over what is no page, such as the results that it is about."""
    path = require_output(output)
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(len(DOCTYPE))
        if start not in (b"", DOCTYPE.encode()):
            raise InputError(f"output {path} is there and is no HTML page; choose another file")


def _paths(given: Sequence[str]) -> list[Path]:
    return [path for text in given for path in (find_runs(text) if "<" in text else [Path(text)])]


def _section(path: Path) -> Section:
    """What the page says about one metrics file and the tensors beside it."""
    content: Any = read_json(path, what="metrics file", made_by=MADE_BY)
    try:
        if isinstance(content, dict) and "attacks" in content:
            section = membership_section(path)
        elif isinstance(content, dict) and {"num_train", "candidates"} <= content.keys():
            tensors, _ = read_tensors(path.parent / "evaluation.safetensors", EVALUATION)
            section = reconstruction_section(content, tensors)
        elif isinstance(content, dict) and {"mean", "images"} <= content.keys():
            file = path.parent / "inversion_evaluation.safetensors"
            section = inversion_section(content, read_tensors(file, INVERSION_EVALUATION)[0])
        else:
            raise InputError(f"{path} is not the metrics file of an evaluation; {MADE_BY}")
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not the metrics file of an evaluation ({error!r}); {MADE_BY}"
        ) from error
    return section


def _over_seeds(paths: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """Metrics of reconstructions by run and name of their stage without its seed."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in dict.fromkeys(paths):
        content: Any = read_json(path, what="metrics file", made_by=MADE_BY)
        if {"num_train", "candidates"} <= content.keys():
            stage = re.sub(r"[-_]?seed\d+", "", path.parent.name)
            groups.setdefault(str(path.parent.parent / stage), []).append(content)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _configs(directories: Sequence[Path]) -> list[tuple[str, str]]:
    """Saved configs of the experiments that the metrics are of."""
    roots = list(dict.fromkeys(directory.parent for directory in directories))
    return [
        (str(config.relative_to(root.parent)), config.read_text(encoding="utf-8"))
        for root in roots
        for config in finished_files(root, "*/config*.yaml")
    ]
