"""The HTML report about finished runs."""

import re
import sys
from collections.abc import Mapping, Sequence
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
from commands.figure_section import numbers_section
from commands.membership_gains import gains_section
from commands.membership_section import membership_section
from commands.membership_seeds import seeds_section
from commands.paper_tables import paper_table_section
from commands.stages import finished_files, stages_behind
from commands.table import find_runs
from reporting.clusters import clusters_section
from reporting.inversion_section import inversion_section
from reporting.page import DOCTYPE, Page, Section, render
from reporting.reconstruction_overview import overview_section
from reporting.reconstruction_section import reconstruction_section
from reporting.resolutions import resolutions_section

MADE_BY = "a `test` stage makes one, as with configs/quickstart/evaluate.yaml"


def report(
    metrics: str | list[str] | None = None,
    output: str | None = None,
    inversions: str | None = None,
    table: str | None = None,
    run: str | None = None,
    numbers: str | None = None,
    figure: str | None = None,
) -> None:
    """Writes one self-contained HTML page about finished evaluations.

    Args:
        metrics: The ``metrics.json`` of an evaluation stage in its run directory, or several;
            ``<name>`` in a path stands for anything, as for the tool ``table``. Also the
            ``resolutions.json`` of a probe's images.
        output: The page to write; by default ``report.html`` beside the first, or in ``run``.
        inversions: The ``inversion_metrics.json`` of inverted images, shown first.
        table: ``table2`` … ``table7``, ``fig4`` or ``fig5`` of the membership paper with its own
            figures beside; or ``seeds``, the mean over seeds, or ``gains``, what each step of the
            default attack gains; of the runs in ``run``.
        run: The directory of the pipeline that the table is about.
        numbers: The JSON file that the tool ``table`` has written, shown first.
        figure: What these numbers are of, for its layout and what the paper says: ``fig03``,
            ``fig04a``, ``fig04b``, ``fig11`` … ``fig14``, ``fig18`` or ``fig28`` of the
            reconstruction paper.

    Raises:
        InputError: An evaluation is not finished or broken, or the page cannot be written.
    """
    if (table is None) != (run is None) or (metrics is None and table is None and numbers is None):
        raise InputError("report needs --metrics, --numbers, or --table and --run")
    if figure is not None and numbers is None:
        raise InputError("--figure says what --numbers is of; give that file, too")
    if output is not None:
        _require_page(output)
    # What is about many runs comes first, and has a title of its own.
    general: list[Section] = []
    directories: list[Path] = []
    if numbers is not None:
        general.append(numbers_section(Path(numbers), figure))
        directories.append(Path(numbers).parent)
    if table is not None and run is not None:
        own = {"seeds": seeds_section, "gains": gains_section}
        general.append(own[table](run) if table in own else paper_table_section(table, run))
        directories.append(Path(run) / table)
    given = [metrics] if isinstance(metrics, str) else metrics or []
    contents = _contents(given if inversions is None else [inversions, *given])
    directories += [path.parent for path in contents]
    of_runs = _sections(contents)
    general += _over_seeds(contents)
    target = Path(output) if output is not None else directories[0] / "report.html"
    if output is None and run is not None:
        target = Path(run) / "report.html"
    sections = [*general, *(section for _, section in of_runs)]
    titles = list(dict.fromkeys(section.title for section in sections))
    page = Page(
        title=titles[0]
        if len(titles) == 1 or numbers is not None
        else "What trained models give away",
        sections=[
            *general,
            *(replace(section, title=f"{section.title}: {name}") for name, section in of_runs),
        ],
        versions=f"afterimage {package_version()}, torch {torch.__version__}, "
        f"lightning {lightning.__version__}",
        configs=_configs(directories),
    )
    with atomic_path(target) as temporary:
        temporary.write_text(render(page), encoding="utf-8")
    for section in sections:
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


def _contents(given: Sequence[str]) -> dict[Path, Any]:
    """What the metrics files hold, by path."""
    paths = [p for text in given for p in (find_runs(text) if "<" in text else [Path(text)])]
    return {path: read_json(path, what="metrics file", made_by=MADE_BY) for path in paths}


def _kind(content: Any) -> str:  # noqa: ANN401 - any JSON value
    """What a file's content is the result of."""
    if isinstance(content, list):
        return "resolutions"
    kinds = {
        "membership": {"attacks"},
        "clusters": {"curves", "maxclust"},
        "reconstruction": {"num_train", "candidates"},
        "inversion": {"mean", "images"},
    }
    keys = set(content) if isinstance(content, dict) else set()
    return next((kind for kind, needed in kinds.items() if needed <= keys), "unknown")


def _sections(contents: Mapping[Path, Any]) -> list[tuple[str, Section]]:
    """Name and section of each file; seeds of one evaluation of clusters make one section."""
    groups: dict[str, list[Path]] = {}
    for path, content in contents.items():
        key = _stage(path) if _kind(content) == "clusters" else str(path)
        groups.setdefault(key, []).append(path)
    return [
        (
            Path(key).name if len(paths) > 1 else paths[0].parent.name,
            _section(paths[0], [contents[path] for path in paths]),
        )
        for key, paths in groups.items()
    ]


def _section(path: Path, runs: Sequence[Any]) -> Section:
    """What the page says about a metrics file and the tensors beside it, or about several."""
    content, kind = runs[0], _kind(runs[0])
    try:
        if kind == "membership":
            return membership_section(path)
        if kind == "clusters":
            return clusters_section(runs)
        if kind == "resolutions":
            return resolutions_section(content)
        if kind == "reconstruction":
            tensors, _ = read_tensors(path.parent / "evaluation.safetensors", EVALUATION)
            return reconstruction_section(content, tensors)
        if kind == "inversion":
            file = path.parent / "inversion_evaluation.safetensors"
            return inversion_section(content, read_tensors(file, INVERSION_EVALUATION)[0])
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = "is not the metrics file of an evaluation"
        if len(runs) > 1:
            what = f"cannot be averaged with {len(runs) - 1} more"
        raise InputError(f"{path} {what} ({error!r}); {MADE_BY}") from error
    raise InputError(f"{path} is not the metrics file of an evaluation; {MADE_BY}")


def _over_seeds(contents: Mapping[Path, Any]) -> list[Section]:
    """The means over seeds of reconstructions, if there are several of one."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, content in contents.items():
        if _kind(content) == "reconstruction":
            groups.setdefault(_stage(path), []).append(content)
    if all(len(runs) < 2 for runs in groups.values()):
        return []
    try:
        return [overview_section(dict(sorted(groups.items(), key=lambda group: -len(group[1]))))]
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"the runs cannot be averaged ({error!r}); {MADE_BY}") from error


def _stage(path: Path) -> str:
    """Run and name of the stage that a file is of, without its seed."""
    return str(path.parent.parent / re.sub(r"[-_]?seed\d+", "", path.parent.name))


def _configs(directories: Sequence[Path]) -> list[tuple[str, str]]:
    """Saved configs of the stages that the page's files came from, by name.

    A pipeline's stages tell which those are; beside others, all stages of the run are taken.
    """
    found = []
    for run in dict.fromkeys(directory.parent for directory in directories):
        own = [stages_behind(d) for d in dict.fromkeys(directories) if d.parent == run]
        behind = {stage for stages in own for stage in stages}
        for config in finished_files(run, "*/config*.yaml"):
            if [] in own or config.parent in behind:
                name = str(config.relative_to(run.parent))
                found.append((name, config.read_text(encoding="utf-8")))
    return found
