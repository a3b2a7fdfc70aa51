"""Tables in the paper's layout: what runs here gave, beside what the paper printed."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from artifacts.errors import InputError
from artifacts.membership_metrics import read_membership_metrics
from commands.stages import finished_files
from reporting.page import Section, Table, table_lines
from reporting.paper_results import STAND_INS, TABLES, PaperTable
from reporting.sweep import estimate

_MISSING = "-"
_BESIDE = "Each cell: here, then the paper's in brackets; - where there is none. "
_OURS = "Each cell: here; - where there is none; the paper prints no numbers. "
_SEEDS = "Over several seeds a mean ± half of its 95% interval (Student's t)."


def paper_table_section(name: str, run: str) -> Section:
    """One of the paper's tables from the finished stages of a run.

    Args:
        name: A key of ``TABLES``.
        run: The pipeline's directory.

    Raises:
        InputError: There is no such table, or no stage of it is finished.
    """
    if name not in TABLES:
        raise InputError(f"there is no table '{name}'; choose one of {', '.join(TABLES)}")
    layout = TABLES[name]
    found = _found(layout, Path(run), layout.metric)
    if not found:
        pattern = layout.stage.format(row="*", column="*") + "_seed*"
        raise InputError(
            f"'{run}' has no {pattern}/metrics.json: no stage of {name} is finished; --run is "
            "what the pipeline names at its end"
        )
    tables = [_table(layout, found)]
    if layout.metric == "asr":
        # It needs no threshold, so it tells more where the shadow's does not fit the target.
        tables.append(_table(_own(layout, found, "AUC"), _found(layout, Path(run), "auc")))
    return Section(
        title=layout.title,
        threat_model="Membership inference against encoders pre-trained by masked image modelling. "
        "The attacker holds the encoder and images of the same kind, and no member.",
        headline=f"{len(found)} cells of {name} from {run}",
        tables=tables,
        caveats=(
            "Numbers beside each other are comparable only at the paper's sizes and data.",
            "A cell without an interval is one run: another seed changes it by some hundredths.",
        ),
        lines=[line for table in tables for line in table_lines(table)],
    )


def _found(layout: PaperTable, run: Path, metric: str) -> dict[tuple[str, str], list[float]]:
    """Numbers of finished stages, one a seed, by (row key, column key)."""
    pattern = re.escape(layout.stage)
    known = {"row": layout.rows, "column": layout.columns}
    for part, keys in known.items():
        options = "|".join(map(re.escape, sorted({**keys, **STAND_INS}, key=len, reverse=True)))
        pattern = pattern.replace(rf"\{{{part}\}}", f"(?P<{part}>{options}|.+?)")
    found: dict[tuple[str, str], list[float]] = {}
    for path in finished_files(run, "*/metrics.json"):
        match = re.fullmatch(rf"{pattern}_seed\d+", path.parent.name)
        if match is None:
            continue
        keys = match.groupdict()
        attacks = read_membership_metrics(path, [metric])["attacks"]
        chosen = layout.columns if layout.column == "attack" else {keys["column"]: ""}
        for column in chosen:
            values = attacks.get(column if layout.column == "attack" else "paper")
            if values is not None:
                found.setdefault((keys["row"], column), []).append(float(values[metric]))
    return found


def _headings(known: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """The paper's rows or columns, and after them those that only runs here have."""
    return {**known, **{key: STAND_INS.get(key, key) for key in keys if key not in known}}


def _own(layout: PaperTable, found: Iterable[tuple[str, str]], metric: str) -> PaperTable:
    """The layout for a number that the paper does not give, with what there is of it here."""
    parts = []
    for position, known in enumerate((layout.rows, layout.columns)):
        here = {key[position] for key in found}
        parts.append({k: title for k, title in _headings(known, sorted(here)).items() if k in here})
    title = f"{layout.title}: {metric}, which the paper does not give"
    return replace(layout, title=title, rows=parts[0], columns=parts[1], values={})


def _table(layout: PaperTable, found: Mapping[tuple[str, str], list[float]]) -> Table:
    rows = _headings(layout.rows, (row for row, _ in found))
    columns = _headings(layout.columns, (column for _, column in found))

    def cell(row: str, column: str) -> str:
        ours = _over_seeds(found[row, column]) if (row, column) in found else _MISSING
        if not layout.values:
            return ours
        theirs = layout.values.get((row, column))
        return f"{ours} ({_MISSING if theirs is None else f'{theirs:.4f}'})"

    return Table(
        layout.title,
        [f"{layout.row} \\ {layout.column}", *columns.values()],
        [[heading, *(cell(row, column) for column in columns)] for row, heading in rows.items()],
        (_BESIDE if layout.values else _OURS) + _SEEDS,
    )


def _over_seeds(values: list[float]) -> str:
    mean = estimate(values)
    return f"{mean.mean:.4f}" if mean.count == 1 else f"{mean.mean:.4f} ± {mean.half_width:.4f}"
