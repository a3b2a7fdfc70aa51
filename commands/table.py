"""The table of many finished runs, averaged over seeds, beside published figures."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from artifacts.errors import InputError
from artifacts.files import atomic_path, read_json, require_file, require_output
from commands.stages import command_of, is_finished
from commands.table_file import write_table_file
from reporting.sweep import PLACEHOLDER, Key, Rows, cells_beside, gather, runs_of, values_in


def table(
    metrics: str,
    columns: dict[str, str],
    output: str,
    over: list[str] | None = None,
    published: str | None = None,
    title: str = "Results",
) -> None:
    """Writes the numbers of many runs as one table: Markdown, and JSON beside it.

    Args:
        metrics: The runs' ``metrics.json`` with ``<name>`` for what differs between them, as
            ``runs/x/evaluate_wd<wd>_seed<seed>/metrics.json``.
        columns: Column title by the path of a number in those files, as
            ``candidates/cosine/0.75/recovered``.
        output: The Markdown file to write.
        over: Names that are averaged over; by default ``seed``. The mean has a 95% interval.
        published: YAML file with figures to show beside ours: a list of ``values`` (name to value)
            and ``columns`` (title to number).
        title: Heading.

    Raises:
        InputError: No run is found, one lacks a number, runs that are averaged are of different
            experiments, or the table would be written over one.
    """
    target = require_output(output)
    beside_it = target.with_suffix(".json")
    if target == beside_it:
        raise InputError(f"output {target} is the Markdown file, as table.md; JSON is put beside")
    names = PLACEHOLDER.findall(metrics)
    averaged = ["seed"] if over is None else over
    read = [*find_runs(metrics), *([] if published is None else [Path(published)])]
    for path in (target, beside_it):
        require_output(path, inputs=read)
    if averaged == ["seed"]:
        _require_seeds_of_one_experiment(find_runs(metrics))
    runs = _read_runs(metrics)
    try:
        rows = gather(runs, columns, averaged)
    except KeyError as error:
        raise InputError(f"a run of {metrics} has no number at {error}") from error
    beside = _read_published(published) if published is not None else {}
    kept = [name for name in names if name not in averaged]
    lines = _markdown(title, kept, rows, beside)
    write_table_file(beside_it, rows)
    with atomic_path(target) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(lines) + f"\nthe table is {target}\n")


def find_runs(pattern: str) -> dict[Path, Key]:
    """Files that a path with ``<name>`` in it stands for, with the names' values.

    Raises:
        InputError: There is no name, one stands twice, or no file matches.
    """
    names = PLACEHOLDER.findall(pattern)
    if not names or len(set(names)) != len(names):
        raise InputError(f"--metrics needs <name>, each once, where paths differ; got '{pattern}'")
    start = re.split(r"[^/]*<", pattern, maxsplit=1)[0]
    relative = PLACEHOLDER.sub("*", pattern[len(start) :])
    found: dict[Path, Key] = {}
    for path in sorted(Path(start or ".").glob(relative)):
        values = values_in(str(path), str(Path(pattern)))
        if values is not None and is_finished(path.parent):
            found[path] = tuple(values.items())
    if not found:
        raise InputError(f"no file matches {pattern}; run the experiment's pipeline first")
    return found


def _require_seeds_of_one_experiment(paths: Mapping[Path, Key]) -> None:
    """Refuses to average a pipeline's stages whose commands differ in more than the seed.

    Raises:
        InputError: There are such stages.
    """
    seen: dict[Key, tuple[Path, list[str]]] = {}
    for path, key in paths.items():
        own = f"seed{dict(key).get('seed', '')}"
        command = [
            word.replace(own, "seed")
            for word in command_of(path.parent)
            if not re.match(r"--[\w.]*seed\w*=", word)
        ]
        row = tuple(pair for pair in key if pair[0] != "seed")
        first, expected = seen.setdefault(row, (path, command))
        if command and expected and command != expected:
            differ = sorted(set(command) ^ set(expected))[0]
            raise InputError(
                f"{first.parent} and {path.parent} would be averaged, but are of different "
                f"experiments ({differ}); give each a directory of its own (--run), or delete one"
            )


def _read_runs(pattern: str) -> dict[Key, Any]:
    return {
        values: read_json(path, what="metrics file", made_by="an evaluation stage makes one")
        for path, values in find_runs(pattern).items()
    }


def _read_published(path: str) -> dict[Key, dict[str, float]]:
    require_file(path, what="file of published figures", made_by="check --published")
    try:
        entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        return {
            tuple((str(name), str(value)) for name, value in entry["values"].items()): {
                str(title): float(number) for title, number in entry["columns"].items()
            }
            for entry in entries
        }
    except (yaml.YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(
            f"{path} is not a list of 'values' and 'columns': {' '.join(str(error).split())}"
        ) from error


def _markdown(
    title: str, names: list[str], rows: Rows, beside: dict[Key, dict[str, float]]
) -> list[str]:
    printed = [
        {column: f"{figure:g}" for column, figure in beside.get(key, {}).items()} for key in rows
    ]
    titles, lines = cells_beside(rows, [[value for _, value in key] for key in rows], printed)
    header = [*names, *titles]
    table = [_line(header), _line(["---"] * len(header)), *map(_line, lines)]
    return [f"## {title}", "", *table, "", runs_of(rows)]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
