"""Tables in the paper's layout: what runs here gave, beside what the paper printed."""

import re
from collections.abc import Mapping
from pathlib import Path

from artifacts.errors import InputError
from artifacts.membership_metrics import read_membership_metrics
from commands.stages import finished_files
from reporting.page import Section, Table, table_lines
from reporting.paper_results import TABLES, PaperTable
from reporting.sweep import estimate

_MISSING = "-"
_NOTE = (
    "Each cell: here, then the paper's in brackets; - where there is none. Over several seeds a "
    "mean ± half of its 95% interval (Student's t)."
)


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
    found = _found(layout, Path(run))
    if not found:
        pattern = layout.stage.format(row="*", column="*") + "_seed*"
        raise InputError(
            f"'{run}' has no {pattern}/metrics.json: no stage of {name} is finished; --run is "
            "what the pipeline names at its end"
        )
    table = _table(layout, found)
    return Section(
        title=layout.title,
        threat_model="Membership inference against encoders pre-trained by masked image modelling. "
        "The attacker holds the encoder and images of the same kind, and no member.",
        headline=f"{len(found)} cells of {name} from {run}",
        tables=[table],
        caveats=(
            "Numbers beside each other are comparable only at the paper's sizes and data.",
            "A cell without an interval is one run: another seed changes it by some hundredths.",
        ),
        lines=table_lines(table),
    )


def _found(layout: PaperTable, run: Path) -> dict[tuple[str, str], list[float]]:
    """Numbers of finished stages, one a seed, by (row key, column key)."""
    pattern = re.escape(layout.stage)
    known = {"row": layout.rows, "column": layout.columns}
    for part, keys in known.items():
        options = "|".join(map(re.escape, sorted(keys, key=len, reverse=True)))
        pattern = pattern.replace(rf"\{{{part}\}}", f"(?P<{part}>{options}|.+?)")
    found: dict[tuple[str, str], list[float]] = {}
    for path in finished_files(run, "*/metrics.json"):
        match = re.fullmatch(rf"{pattern}_seed\d+", path.parent.name)
        if match is None:
            continue
        keys = match.groupdict()
        attacks = read_membership_metrics(path, [layout.metric])["attacks"]
        chosen = layout.columns if layout.column == "attack" else {keys["column"]: ""}
        for column in chosen:
            values = attacks.get(column if layout.column == "attack" else "paper")
            if values is not None:
                found.setdefault((keys["row"], column), []).append(float(values[layout.metric]))
    return found


def _table(layout: PaperTable, found: Mapping[tuple[str, str], list[float]]) -> Table:
    rows = {**layout.rows, **{row: row for row, _ in found if row not in layout.rows}}
    columns = {**layout.columns, **{c: c for _, c in found if c not in layout.columns}}

    def cell(row: str, column: str) -> str:
        values, theirs = found.get((row, column), []), layout.values.get((row, column))
        ours = _over_seeds(values) if values else _MISSING
        return f"{ours} ({_MISSING if theirs is None else f'{theirs:.4f}'})"

    note = _NOTE if layout.values else f"{_NOTE} The paper shows this one as a figure only."
    return Table(
        layout.title,
        [f"{layout.row} \\ {layout.column}", *columns.values()],
        [[heading, *(cell(row, column) for column in columns)] for row, heading in rows.items()],
        note,
    )


def _over_seeds(values: list[float]) -> str:
    mean = estimate(values)
    return f"{mean.mean:.4f}" if mean.count == 1 else f"{mean.mean:.4f} ± {mean.half_width:.4f}"
