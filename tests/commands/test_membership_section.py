"""A report's numbers are those of the scores beside them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score

from artifacts.tensors import MEMBERSHIP_SCORES, write_tensors
from attacks.membership import (
    best_threshold,
    bootstrap_intervals,
    membership_metrics,
    unresolvable_rates,
)
from tests.conftest import run_cli

THRESHOLD = 0.123456789012345


def finish(directory: Path, seed: int, number: int = 40) -> dict[str, Any]:
    """Leaves what a finished attack leaves; one score lies within a rounding of the threshold."""
    generator = torch.Generator().manual_seed(seed)
    members = torch.randn(number, generator=generator)
    members[0] = torch.tensor(THRESHOLD)
    non_members = torch.randn(50, generator=generator) + 1
    tensors = {
        "members": members[None],
        "non_members": non_members[None],
        "thresholds": torch.tensor([THRESHOLD]),
    }
    directory.mkdir()
    path = directory / "scores.safetensors"
    write_tensors(path, MEMBERSHIP_SCORES, tensors, {"attacks": '["combined"]'})
    rates = membership_metrics(members, non_members, THRESHOLD)
    best = best_threshold(members, non_members)
    attack = {
        **rates,
        "intervals": bootstrap_intervals(members, non_members, THRESHOLD, resamples=5),
        "threshold": THRESHOLD,
        "shadow": rates,
        "asr_best_threshold": membership_metrics(members, non_members, best)["asr"],
    }
    metrics = {
        **{"num_members": number, "num_non_members": 50, "num_masks": 4, "mask_ratio": 0.75},
        **{"attacks": {"combined": attack}, "notes": unresolvable_rates(50)},
    }
    (directory / "metrics.json").write_text(json.dumps(metrics))
    labels = [1] * number + [0] * 50
    scores = torch.cat([members, non_members])
    metrics["auc of sklearn"] = roc_auc_score(labels, -scores)
    return metrics


def test_a_run_as_it_was_left_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = finish(tmp_path / "attack", 0, number=37)
    assert run_cli("report", f"--metrics={tmp_path}/attack/metrics.json") == 0
    assert f"AUC {metrics['auc of sklearn']:.3f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("metrics.json", "metrics.json is there and is no HTML page"),
        ("scores.safetensors", "scores.safetensors is there and is no HTML page"),
        (" ", "output ' ' names no file"),
    ],
)
def test_a_report_is_not_written_over_results(
    output: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "attack"
    finish(run, 0)
    before = {path: path.read_bytes() for path in run.iterdir()}
    target = run / output if output.strip() else output
    assert run_cli("report", f"--metrics={run}/metrics.json", f"--output={target}") == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in run.iterdir()} == before
    for _ in range(2):  # A page is written over a page.
        assert run_cli("report", f"--metrics={run}/metrics.json", f"--output={run}/page") == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auc": 0.9}, "auc of the attack 'combined' is"),
        ({"asr": 0.99}, "asr of the attack 'combined' is"),
        ({"tpr_at_1_fpr": 1}, "tpr_at_1_fpr of the attack 'combined' is"),
        ({"asr_best_threshold": 1}, "asr_best_threshold of the attack 'combined' is"),
        ({"threshold": 0.1234}, "threshold of the attack 'combined' is"),
        ({"num_members": 12345}, "it has scores of 40 members, not 12345"),
        ({"num_non_members": 49}, "it has scores of 50 non_members, not 49"),
        ({"seed": 1}, "of the attack 'combined' is"),
        ({"seed": 1, "number": 41}, "it has scores of 41 members, not 40"),
    ],
)
def test_scores_of_another_run_or_edited_metrics_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = finish(tmp_path / "attack", 0)
    path = tmp_path / "attack/metrics.json"
    if "seed" in changes:
        finish(tmp_path / "other", **changes)
        (tmp_path / "other/scores.safetensors").replace(tmp_path / "attack/scores.safetensors")
    else:
        del metrics["auc of sklearn"]
        place = metrics if changes.keys() <= metrics.keys() else metrics["attacks"]["combined"]
        place.update(changes)
        path.write_text(json.dumps(metrics))
    assert run_cli("report", f"--metrics={path}") == 1
    error = capsys.readouterr().err
    assert f"scores.safetensors is not of the run that {path} is of" in error
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "attack/report.html").exists()
