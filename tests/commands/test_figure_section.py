"""Reports on the means of many runs, in the layout of the paper's figures."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from commands.figure_section import numbers_section
from commands.table_file import read_table_file, write_table_file
from reporting.paper_figures import ACCURACY, FIGURES, HELD_OUT, RECOVERED
from reporting.sweep import Estimate, Rows
from tests.conftest import SHARED, run_cli


def row(recovered: float, held_out: float = 0.0, accuracy: float = 0.9) -> dict[str, Estimate]:
    columns = {ACCURACY: accuracy, RECOVERED: recovered, HELD_OUT: held_out}
    return {title: Estimate(mean, 0.25, 3) for title, mean in columns.items()}


def write(path: Path, rows: Rows) -> Path:
    write_table_file(path, rows)
    return path


def by(name: str, values: dict[str, dict[str, Estimate]]) -> Rows:
    return {((name, value),): numbers for value, numbers in values.items()}


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """A table of trainings of 500, 1,000 and 10,000 steps."""
    values = {"4": row(0), "9": row(5.5, 1), "99": row(37, 33.25)}
    return write(tmp_path / "table.json", by("epoch", values))


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    rows: Rows = {
        (("wd", "0.1"),): {"a": Estimate(1.5, 0.25, 3), "b": Estimate(2.0, math.nan, 1)},
        (("wd", "x"),): {"a": Estimate(-3.0, 0.0, 2), "b": Estimate(0.0, 1.0, 2)},
    }
    assert str(read_table_file(write(tmp_path / "t.json", rows))) == str(rows)


def test_epochs_are_shown_as_gradient_steps(lengths: Path) -> None:
    section = numbers_section(lengths, "fig12")
    (table,) = section.tables
    assert list(table.header) == ["gradient steps", ACCURACY, RECOVERED, HELD_OUT]
    assert [list(cells) for cells in table.rows] == [
        ["500", "0.900 ± 0.250", "0.0 ± 0.2", "0.0 ± 0.2"],
        ["1,000", "0.900 ± 0.250", "5.5 ± 0.2", "1.0 ± 0.2"],
        ["10,000", "0.900 ± 0.250", "37.0 ± 0.2", "33.2 ± 0.2"],
    ]
    # The most above the null, not the most.
    assert section.headline.startswith("5.5 ± 0.2 training images recovered (cosine > 0.75)")
    assert "held-out images is 1.0 ± 0.2 (gradient steps 1,000)" in section.headline
    assert len(section.figures) == 1


def test_a_count_says_of_how_many(lengths: Path) -> None:
    rows = read_table_file(lengths)
    sized = {key: {**row, "training samples": Estimate(40, 0.0, 3)} for key, row in rows.items()}
    section = numbers_section(write(lengths, sized), "fig12")
    assert section.headline.startswith("5.5 ± 0.2 of 40 training images recovered (cosine > 0.75)")
    (table,) = section.tables
    assert "training samples" not in table.header
    assert "Of 40 training samples. Runs a row: 3." in table.note


def test_the_papers_numbers_stand_beside_ours(tmp_path: Path) -> None:
    rows: Rows = {
        (("dataset", dataset), ("backbone", backbone)): row(3)
        for dataset in ("digits", "inaturalist_fauna_flora", "food101_binary")
        for backbone in ("clip", "dino")
    }
    (table,) = numbers_section(write(tmp_path / "t.json", rows), "fig03").tables
    assert table.header[3] == f"{ACCURACY} (paper)"
    assert [(*cells[:2], cells[3]) for cells in table.rows] == [
        ("Food-101", "DINO", "0.85"),
        ("Food-101", "CLIP", "> 0.95"),
        ("iNaturalist", "DINO", "> 0.95"),
        ("iNaturalist", "CLIP", "> 0.95"),
        ("digits", "DINO", "-"),
        ("digits", "CLIP", "-"),
    ]


def test_few_samples_and_wide_probes_are_left_and_up(tmp_path: Path) -> None:
    counts = {("100", "50"): 40, ("1000", "50"): 60, ("1000", "2000"): 720}
    rows: Rows = {(("width", w), ("n", n)): row(count) for (n, w), count in counts.items()}
    matrix, numbers = numbers_section(write(tmp_path / "t.json", rows), "fig13").tables
    assert [list(cells) for cells in [matrix.header, *matrix.rows]] == [
        ["width \\ training samples", "100", "1,000"],
        ["2,000", "-", "720.0 ± 0.2 (72%)"],
        ["50", "40.0 ± 0.2 (40%)", "60.0 ± 0.2 (6%)"],
    ]
    assert len(numbers.rows) == 3


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_makes_a_small_page_of_its_own(
    figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = FIGURES[figure]
    values = list(layout.labels) if layout.number is None else ["1", "2", "4"]
    rows: Rows = {}
    for index, value in enumerate(values):
        key = tuple((name, value) for name in layout.names)
        rows[key] = dict.fromkeys(layout.columns, Estimate(float(index), 1.0, 3))
    rows = rows or {(): dict.fromkeys(layout.columns, Estimate(1.0, math.nan, 1))}
    path = write(tmp_path / "table.json", rows)
    assert run_cli("report", f"--numbers={path}", f"--figure={figure}") == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<h1>{layout.title}" in page
    for heading in ("What the paper says", "What may not be concluded"):
        assert heading in page
    assert len(page) < 500_000
    assert page.count("<img") == (layout.chart is not None)
    assert "the report is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "figures", "headline"),
    [
        (by("wd", {"0.1": row(3), "0.2": row(5)}), 1, "5.0 ± 0.2 training images recovered"),
        (by("name", {"a": row(3), "b": row(5)}), 0, "5.0 ± 0.2 training images recovered"),
        (by("wd", {"0.1": {"asr": Estimate(0.7, math.nan, 1)}}), 0, "asr: 0.700"),
    ],
)
def test_without_a_figure_the_title_is_plain(
    rows: Rows, figures: int, headline: str, tmp_path: Path
) -> None:
    section = numbers_section(write(tmp_path / "t.json", rows), None)
    assert section.title == "Means over runs"
    assert len(section.figures) == figures
    assert section.headline.startswith(headline)
    assert not section.paper


NUMBER = {"mean": 1.0, "half_width": 0.5, "count": 3}


def entry(changes: dict[str, Any], name: str = "4") -> dict[str, Any]:
    columns = {title: {**NUMBER, **changes} for title in (ACCURACY, RECOVERED, HELD_OUT)}
    return {"values": {"epoch": name}, "columns": columns}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no table file at"),
        ("[", "is not a table file"),
        ({}, "is no list of rows"),
        ([], "is no list of rows"),
        ([3], "row 1 cannot be"),
        ([{"values": {"epoch": "4"}}], "row 1 cannot be (KeyError('columns'))"),
        ([{"values": {"epoch": "4"}, "columns": {}}], "row 1 is there twice or has other"),
        ([{"values": [], "columns": {}}], "row 1 cannot be"),
        ([entry({}), entry({})], "row 2 is there twice"),
        ([entry({}), {**entry({}), "values": {"wd": "4"}}], "row 2 is there twice or has other"),
        ([entry({"mean": "1"})], "row 1 cannot be (TypeError("),
        ([entry({"mean": True})], "mean and half_width are"),
        ([entry({"mean": None})], "row 1 cannot be"),
        ([entry({"mean": 10**400})], "row 1 cannot be"),
        ([entry({"half_width": None})], "half_width is None with a count of 3"),
        ([entry({"half_width": -1})], "mean and half_width are"),
        ([entry({"count": 0})], "count is 0"),
        ([entry({"count": 1})], "half_width is 0.5 with a count of 1"),
        ([entry({}, name="last")], "epoch is 'last'; fig12 needs a number"),
        ([entry({}, name="nan")], "epoch is 'nan'; fig12 needs a number"),
        ([{**entry({}), "values": {}}], "differ in nothing, those of fig12 in epoch"),
        (
            [{"values": {"epoch": "4"}, "columns": {ACCURACY: NUMBER}}],
            f"has no column '{RECOVERED}', which fig12 shows; it has {ACCURACY}",
        ),
    ],
)
def test_what_is_no_such_table_is_refused_in_one_line(
    content: Any,  # noqa: ANN401
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    assert run_cli("report", f"--numbers={path}", "--figure=fig12") == 1
    error = capsys.readouterr().err
    assert message in error
    assert str(path) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_no_share_of_no_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.json", {(("n", "0"), ("width", "5")): row(1)})
    assert run_cli("report", f"--numbers={path}", "--figure=fig13") == 1
    assert "n is 0; fig13 needs a number above 0" in capsys.readouterr().err


def test_the_page_has_the_configs_of_its_own_stages_only(tmp_path: Path) -> None:
    """Figures share a run: what the table was not made of is not on its page."""

    def stage(name: str, *words: str, **inputs: Any) -> None:  # noqa: ANN401
        (tmp_path / "run" / name).mkdir(parents=True)
        marker = {"command": list(words), "inputs": inputs, "status": "complete"}
        (tmp_path / "run" / name / "stage.json").write_text(json.dumps(marker))
        (tmp_path / "run" / name / "config.yaml").write_text(f"of: {name}")

    stage("probe_a", "fit")
    stage("probe_b", "fit")
    stage("evaluate_a=1", "test", f"--model.probe={tmp_path}/run/probe_a/checkpoints/last.ckpt")
    stage("table", "table", metrics={"evaluate_a=1/metrics.json": "0"})
    write(tmp_path / "run/table/table.json", by("epoch", {"4": row(3)}))
    words = [f"--numbers={tmp_path}/run/table/table.json", f"--output={tmp_path}/page.html"]
    assert run_cli("report", *words) == 0
    page = (tmp_path / "page.html").read_text()
    shown = [name for name in ("probe_a", "probe_b", "evaluate_a=1") if f"of: {name}" in page]
    assert shown == ["probe_a", "evaluate_a=1"]


def test_the_papers_statements_are_the_papers() -> None:
    path = SHARED / "papers" / "transfer_learning_reconstruction.txt"
    if not path.is_file():
        pytest.skip("the paper's text is not here")
    text = path.read_text(encoding="utf-8")
    for words in (
        "above $95\\%$ (except for DINO on Food101 with $85\\%$",
        "test-accuracy $84\\%$/$96\\%$",
        "increases after about 1000 iterations and starts saturating at about 2000 iterations",
        "keeps increasing by more than 1.5% until 10k iterations",
        "further left and higher up in the table",
        "larger datasets, up to $N$=$2000$",
        "increases until approximately 0.1 and then decreases from about 0.3",
        "either 0.08 or 0.16",
        "which occurs at 3294 clusters",
        "the largest $150$ clusters",
        "vary between 250-500 pixels",
    ):
        assert words in text
    printed = {figure: layout.printed for figure, layout in FIGURES.items() if layout.printed}
    values = {
        number for rows in printed.values() for cells in rows.values() for number in cells.values()
    }
    assert values == {"> 0.95", "0.85", "0.84", "0.96"}
    below = [key for key, cells in printed["fig03"].items() if cells[ACCURACY] == "0.85"]
    assert below == [("food101_binary", "dino")]
    assert len(printed["fig03"]) == 8
