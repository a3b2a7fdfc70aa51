"""Tables in the paper's layout, and over seeds, from files that runs leave."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from artifacts.errors import InputError
from commands.paper_tables import paper_table_section
from reporting.membership import COLUMNS
from reporting.paper_results import TABLES
from tests.conftest import SHARED, run_cli


def finish(run: Path, stage: str, **asr: float) -> None:
    """Leaves what a finished attack stage leaves."""
    attacks: dict[str, Any] = {
        name: {
            "asr": value,
            "auc": value + 0.1,
            "asr_best_threshold": value + 0.05,
            "threshold": value / 100,
        }
        for name, value in asr.items()
    }
    (run / stage).mkdir(parents=True)
    metrics = {"kind": "membership", "num_members": 64, "num_non_members": 64, "attacks": attacks}
    (run / stage / "metrics.json").write_text(json.dumps(metrics))


def test_ours_stands_before_the_papers(tmp_path: Path) -> None:
    finish(tmp_path, "table3_cifar10_0.75_seed0", paper=0.71)
    finish(tmp_path, "table3_tiny_imagenet_0.1_seed0", paper=0.61)
    finish(tmp_path, "table3_digits_0.75_seed0", paper=0.55)
    section = paper_table_section("table3", str(tmp_path))
    table, auc = section.tables
    assert list(table.header[1:]) == ["CIFAR-10", "CIFAR-100", "TinyImageNet", "digits"]
    rows = {row[0]: list(row[1:]) for row in table.rows}
    assert rows["0.75"] == [
        *("0.7100 (0.7267)", "- (0.6936)", "- (0.6905)"),
        "0.5500 (-)",
    ]
    assert rows["0.1"][2] == "0.6100 (0.7432)"
    # What the paper does not give stands for itself, and only where there is some.
    assert list(auc.header[1:]) == ["CIFAR-10", "TinyImageNet", "digits"]
    assert list(auc.rows) == [["0.1", "-", "0.7100", "-"], ["0.75", "0.8100", "-", "0.6500"]]
    assert any(line.startswith("0.75") and "0.7100 (0.7267)" in line for line in section.lines)


def test_cells_are_means_over_seeds(tmp_path: Path) -> None:
    values = [0.71, 0.8, 0.78]
    for seed, value in enumerate(values):
        finish(tmp_path, f"table3_cifar10_0.75_seed{seed}", paper=value)
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    section = paper_table_section("table3", str(tmp_path))
    cell = {row[0]: row[1] for row in section.tables[0].rows}["0.75"]
    assert cell == f"{(low + high) / 2:.4f} ± {(high - low) / 2:.4f} (0.7267)"
    assert section.headline.startswith("1 cells of table3")


def test_table_2_has_a_column_an_attack_and_table_7_the_thresholds(tmp_path: Path) -> None:
    finish(tmp_path, "table2_cifar100_encoder_iii_seed0", paper=0.8, baseline_d=0.6, many_masks=0.9)
    table = paper_table_section("table2", str(tmp_path)).tables[0]
    row = {cells[0]: cells for cells in table.rows}["CIFAR-100, Encoder-III"]
    assert list(row[1:]) == [
        *("- (0.5049)", "- (0.6848)", "- (0.5003)", "0.6000 (0.5106)", "0.8000 (0.8323)"),
    ]
    table = paper_table_section("table7", str(tmp_path)).tables[0]
    assert {cells[0]: cells[3] for cells in table.rows}["CIFAR-100"] == "0.0080 (0.0009)"


def test_stages_with_two_keys_are_told_apart(tmp_path: Path) -> None:
    finish(tmp_path, "table6_encoder_ii_weight_decay_seed0", paper=0.8)
    finish(tmp_path, "fig4_tiny_imagenet_cifar10_seed0", paper=0.6)
    table = paper_table_section("table6", str(tmp_path)).tables[0]
    assert {cells[0]: cells[2] for cells in table.rows}["Encoder-II"] == "0.8000 (0.8130)"
    table = paper_table_section("fig4", str(tmp_path)).tables[0]
    assert {cells[0]: cells[3] for cells in table.rows}["CIFAR-10"] == "0.6000"


def test_a_stand_in_of_two_words_is_one_key(tmp_path: Path) -> None:
    finish(tmp_path, "fig4_fashion_mnist_digits_seed0", paper=0.6)
    finish(tmp_path, "fig4_digits_fashion_mnist_seed0", paper=0.7)
    table = paper_table_section("fig4", str(tmp_path)).tables[1]
    assert list(table.header[1:]) == ["digits", "Fashion-MNIST"]
    assert list(table.rows) == [["digits", "-", "0.7000"], ["Fashion-MNIST", "0.8000", "-"]]


def test_the_printed_numbers_are_the_papers() -> None:
    path = SHARED / "papers" / "mim_membership_inference.txt"
    if not path.is_file():
        pytest.skip("the paper's text is not here")
    text = path.read_text(encoding="utf-8")
    for name, layout in TABLES.items():
        if not layout.values or layout.column == "attack":
            continue
        for row, heading in layout.rows.items():
            numbers = [layout.values[row, column] for column in layout.columns]
            printed = {"0.1": "0.10", "0.5": "0.50", "0.9": "0.90", "the target's own": "8"}
            heading = printed.get(heading, heading)
            assert "\t".join([heading, *(f"{n:.4f}" for n in numbers)]) in text, (name, row)
    for row, heading in TABLES["table2"].rows.items():
        numbers = [TABLES["table2"].values[row, column] for column in TABLES["table2"].columns]
        line = "\t".join([heading.split(", ")[1], *(f"{n:.4f}" for n in numbers)])
        assert line in text


def test_means_have_students_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [0.71, 0.8, 0.78]
    for seed, value in enumerate(values):
        finish(tmp_path, f"attack_seed{seed}", combined=value, paper=0.55)
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    mean, half = (low + high) / 2, (high - low) / 2
    assert run_cli("report", "--table=seeds", f"--run={tmp_path}") == 0
    printed = capsys.readouterr().out
    assert f"{mean:.3f} ± {half:.3f} (0.71 0.80 0.78)" in printed


def test_what_was_moved_aside_or_is_not_finished_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, value in enumerate((0.7, 0.8)):
        finish(tmp_path, f"attack_seed{seed}", combined=value, paper=0.5)
    finish(tmp_path, "attack_seed0.previous", combined=0.1, paper=0.1)
    finish(tmp_path, "attack_seed2", combined=0.1, paper=0.1)
    (tmp_path / "attack_seed2" / "stage.json").write_text('{"status": "running"}')
    assert run_cli("report", "--table=seeds", f"--run={tmp_path}") == 0
    assert "(0.70 0.80)" in capsys.readouterr().out
    assert run_cli("report", "--table=gains", f"--run={tmp_path}") == 1
    assert "no metrics file of a finished stage at" in capsys.readouterr().err
    finish(tmp_path, "table3_cifar10_0.75_seed0", paper=0.71)
    finish(tmp_path, "table3_cifar10_0.75_seed0.previous", paper=0.1)
    (row,) = (
        row
        for row in paper_table_section("table3", str(tmp_path)).tables[0].rows
        if row[0].startswith("0.75")
    )
    assert row[1] == "0.7100 (0.7267)"


def test_gains_are_differences_of_the_same_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (
        "paper",
        "all_patches",
        "matched",
        "population",
        "calibrated",
        "likelihood_ratio",
        "combined",
        "baseline_d",
    )
    for seed, many, independent in ((0, 0.7, 0.68), (1, 0.74, 0.69)):
        finish(tmp_path, f"attack_seed{seed}", many_masks=many, **dict.fromkeys(names, 0.6))
        finish(tmp_path, f"independent_masks_seed{seed}", many_masks=independent)
    low, high = stats.t.interval(0.95, 1, loc=0.035, scale=stats.sem([0.02, 0.05]))
    assert run_cli("report", "--table=gains", f"--run={tmp_path}") == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("complementary")]
    assert (
        line.split()[2:]
        == (
            f"0.785 → 0.820 +0.035 ± {(high - low) / 2:.3f} 0.685 → 0.720 +0.035 ± "
            f"{(high - low) / 2:.3f}"
        ).split()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table=table9", "--run=x"], "there is no table 'table9'"),
        (["--table=table3", "--run=x"], "no stage of table3 is finished"),
        (["--table=seeds", "--run=x"], "a mean needs two or more"),
        (["--table=gains", "--run=x"], "no finished attack_seed* stage"),
        (["--table=table3"], "needs --metrics, --numbers, or --table and --run"),
        ([], "needs --metrics, --numbers, or --table and --run"),
    ],
)
def test_what_cannot_be_reported(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("=x", f"={tmp_path}") for word in words]
    assert run_cli("report", *words) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("table", ["seeds", "gains", "table3", None])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("[]", "is not the metrics file of"),
        ("{}", "the metrics file of|lacks num_members"),
        ("3", "is not the metrics file of"),
        ({"attacks": {}}, "attacks is {}, not"),
        ({"attacks": 3}, "attacks is 3, not"),
        ({"attacks": {"paper": 3}}, "attacks/paper is 3, not"),
        ({"attacks": {"paper": {}}}, "lacks attacks/paper/a"),
        ({"asr": "high"}, "attacks/paper/asr is 'high', not a number from 0 to 1"),
        ({"asr": 7.3}, "attacks/paper/asr is 7.3, not"),
        ({"asr": True}, "attacks/paper/asr is True, not"),
        ({"asr": "1e999"}, "attacks/paper/asr is inf, not"),
        ({"asr": int("9" * 400)}, "attacks/paper/asr is 9{40}…, not"),
        ({"num_non_members": 0}, "num_non_members is 0, not a positive count"),
        ({"num_members": 1.5}, "num_members is 1.5, not a positive count"),
        ({"num_masks": None}, "num_masks is None, not a positive count"),
        ({"mask_ratio": []}, r"mask_ratio is \[\], not"),
    ],
)
def test_numbers_that_cannot_be_are_refused_in_one_line(
    table: str | None,
    changes: str | dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = (
        "table3_cifar10_0.75_seed0",
        "attack_seed0",
        "attack_seed1",
        "independent_masks_seed0",
    )
    for stage in (*stages, "independent_masks_seed1"):
        finish(tmp_path, stage, paper=0.7)
        path = tmp_path / stage / "metrics.json"
        content = json.loads(path.read_text())
        rates = dict.fromkeys(COLUMNS, 0.7)
        paper = {**rates, "threshold": 1, "intervals": {}, "shadow": rates}
        if isinstance(changes, dict):
            paper |= {key: value for key, value in changes.items() if key == "asr"}
            content |= {"num_masks": 1, "attacks": {"paper": paper}}
            content |= {key: value for key, value in changes.items() if key != "asr"}
        text = json.dumps(content) if isinstance(changes, dict) else changes
        path.write_text(text.replace('"1e999"', "1e999"))
    about = [f"--table={table}", f"--run={tmp_path}"] if table else [f"--metrics={path}"]
    assert run_cli("report", *about) == 1
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1
    assert "metrics.json" in error


def test_attacks_of_other_sizes_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        finish(tmp_path, f"attack_seed{seed}", many_masks=0.7)
        finish(tmp_path, f"independent_masks_seed{seed}", many_masks=0.7)
    changes = {"num_masks": 3, "mask_ratio": 0.5, "num_members": 63, "num_non_members": 65}
    for table, stage in (("gains", "independent_masks_seed0"), ("seeds", "attack_seed1")):
        path = tmp_path / stage / "metrics.json"
        before = path.read_text()
        for key, value in changes.items():
            path.write_text(json.dumps({**json.loads(before), key: value}))
            assert run_cli("report", f"--table={table}", f"--run={tmp_path}") == 1
            error = capsys.readouterr().err
            assert f"{path} has {value}: these cannot be compared" in error
            assert f"has {key} " in error
            assert error.count("\n") == 1
        path.write_text(before)


def test_an_unfinished_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no stage of fig5 is finished"):
        paper_table_section("fig5", str(tmp_path))
