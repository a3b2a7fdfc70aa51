"""What a report says about the means of many runs, in the layout of a figure of the paper."""

from reporting.page import Picture, Section, Table, table_lines
from reporting.paper_figures import ACCURACY, HELD_OUT, RECOVERED, SAMPLES, PaperFigure
from reporting.reconstruction_section import CAVEATS, THREAT_MODEL
from reporting.sweep import Estimate, Key, Rows, as_number, cells_beside, column_texts, runs_of
from reporting.table_charts import (
    matrix_sides,
    recovery_bars,
    recovery_curves,
    recovery_matrix,
)

_OF_RECOVERY = (ACCURACY, RECOVERED, HELD_OUT)
_CAVEATS = (
    CAVEATS[0],
    "The headline is of the row that is most above its null, chosen with the numbers in sight: "
    "other seeds may give less there.",
    "Intervals are over seeds. Another data set, backbone or attack gives other numbers.",
)
_BESIDE = (
    "The paper speaks of its data and its sizes. The configs below say what was run here; where "
    "that is something else, only directions can be compared, no numbers."
)
_CAPTIONS = {
    "curves": "Test accuracy, and recovery beside its null. Bands are 95% intervals over runs.",
    "bars": "Recovery beside its null. Lines are 95% intervals over runs.",
    "matrix": "The same as colours: recovered training images and their share of N.",
}
_OF_ANY_RUNS = "Means of runs of one kind; the report of a single run says what an attacker has."


def plain_section(rows: Rows) -> Section:
    """The section about any table: its numbers, and curves if rows differ in one number."""
    names = [name for name, _ in next(iter(rows))]
    numbers = [as_number(value) for key in rows for _, value in key]
    curve = len(names) == 1 and None not in numbers and _has_recovery(rows)
    layout = PaperFigure(
        title="Means over runs",
        caption="",
        names={name: name for name in names},
        statements=(),
        chart="curves" if curve else None,
        number=float if curve else None,
    )
    return figure_section(layout, rows)


def figure_section(layout: PaperFigure, rows: Rows) -> Section:
    """The section about a figure.

    Args:
        layout: How it is shown.
        rows: Our numbers; rows differ in the layout's names, and have its columns.
    """
    rows = _ordered(layout, rows)
    words = [_words(layout, key) for key in rows]
    printed = [layout.printed.get(tuple(value for _, value in key), {}) for key in rows]
    headings = list(layout.names.values())
    shown = {
        key: {title: n for title, n in row.items() if title not in (*headings, SAMPLES)}
        for key, row in rows.items()
    }
    titles, cells = cells_beside(shown, words, printed)
    matrix = [_matrix(layout, rows)] if layout.chart == "matrix" else []
    note = runs_of(rows) if matrix else f"{layout.caption} {_sizes(rows)}{runs_of(rows)}".strip()
    tables = [*matrix, Table("The numbers", [*headings, *titles], cells, note)]
    recovery = _has_recovery(rows)
    headline = _headline(layout, rows) if recovery else _first_number(rows)
    return Section(
        title=layout.title,
        threat_model=THREAT_MODEL if recovery else _OF_ANY_RUNS,
        headline=headline,
        tables=tables,
        figures=_charts(layout, rows),
        paper=layout.statements,
        caveats=[
            *(_CAVEATS if recovery else ()),
            *layout.caveats,
            *([_BESIDE] if layout.statements else ()),
        ],
        lines=[headline, *table_lines(tables[0])],
    )


def _has_recovery(rows: Rows) -> bool:
    return set(_OF_RECOVERY) <= set(next(iter(rows.values())))


def _ordered(layout: PaperFigure, rows: Rows) -> Rows:
    """Rows in the layout's order, and names within them."""
    places = {value: place for place, value in enumerate(layout.labels)}

    def place(key: Key) -> list[float]:
        if layout.number is None:
            return [places.get(value, len(places)) for _, value in key]
        return [float(value) for _, value in key]

    named = {tuple((n, dict(key)[n]) for n in layout.names): row for key, row in rows.items()}
    return {key: named[key] for key in sorted(named, key=place)}


def _words(layout: PaperFigure, key: Key) -> list[str]:
    """What the values of a row are called."""
    if layout.number is None:
        return [layout.labels.get(value, value) for _, value in key]
    return [f"{layout.number(float(value)):,g}" for _, value in key]


def _headline(layout: PaperFigure, rows: Rows) -> str:
    """The counts of the row that is most above its null."""
    best = max(rows, key=lambda key: rows[key][RECOVERED].mean - rows[key][HELD_OUT].mean)
    recovered, held_out = column_texts([rows[best][RECOVERED], rows[best][HELD_OUT]])
    where = zip(layout.names.values(), _words(layout, best), strict=True)
    at = ", ".join(f"{heading} {word}" for heading, word in where)
    total = f" of {rows[best][SAMPLES].mean:,g}" if SAMPLES in rows[best] else ""
    return (
        f"{recovered}{total} training images recovered (cosine > 0.75); the same count of as many "
        f"held-out images is {held_out}" + (f" ({at})" if at else "")
    )


def _sizes(rows: Rows) -> str:
    """How many training samples the rows are of, if the table says so."""
    sizes = sorted({row[SAMPLES].mean for row in rows.values() if SAMPLES in row})
    return f"Of {' or '.join(f'{size:,g}' for size in sizes)} training samples. " if sizes else ""


def _first_number(rows: Rows) -> str:
    title, number = next(iter(next(iter(rows.values())).items()))
    return f"{title}: {number}" + (f" in the first of {len(rows)} rows" if len(rows) > 1 else "")


def _charts(layout: PaperFigure, rows: Rows) -> list[Picture]:
    if layout.chart is None:
        return []
    accuracy, recovered, held_out = (
        [row[column] for row in rows.values()] for column in _OF_RECOVERY
    )
    headings = list(layout.names.values())
    if layout.chart == "curves":
        assert layout.number is not None
        drawn = recovery_curves(
            [layout.number(float(value)) for ((_, value),) in rows],
            accuracy,
            recovered,
            held_out,
            label=headings[0],
            marks=layout.marks,
            logarithmic=layout.logarithmic,
        )
    elif layout.chart == "bars":
        names = [", ".join(_words(layout, key)) for key in rows]
        drawn = recovery_bars(names, recovered, held_out)
    else:
        drawn = recovery_matrix(_by_side(rows), names=(headings[0], headings[1]))
    return [Picture.of(drawn, _CAPTIONS[layout.chart])]


def _by_side(rows: Rows) -> dict[tuple[float, float], Estimate]:
    """Recovered samples by number of samples and the other number."""
    return {(float(n), float(other)): row[RECOVERED] for ((_, n), (_, other)), row in rows.items()}


def _matrix(layout: PaperFigure, rows: Rows) -> Table:
    """Counts with their share of the samples, as the paper lays them out."""
    cells = _by_side(rows)
    samples, others = matrix_sides(cells)
    first, second = layout.names.values()
    lines = []
    for other in others:
        found = [(n, cells.get((n, other))) for n in samples]
        texts = ["-" if c is None else f"{c.rounded(1)} ({c.mean / n:.0%})" for n, c in found]
        lines.append([f"{other:,g}", *texts])
    header = [f"{second} \\ {first}", *(f"{n:,g}" for n in samples)]
    note = f"{layout.caption} Each cell: what is recovered (cosine > 0.75), and its share of N."
    return Table("Recovered", header, lines, note)
