"""Draws can be compared in TensorBoard's HParams tab."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from artifacts.tensors import CANDIDATES, read_tensors
from tests.conftest import REPOSITORY, quiet, run_cli


def entry(run: Path, draw: int) -> tuple[dict[str, float], dict[str, float]]:
    """Settings and results that TensorBoard holds of a draw."""
    events = EventAccumulator(str(run / f"draw_{draw:04d}")).Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = HParamsPluginData.FromString(content).session_start_info
    settings = {name: value.number_value for name, value in start.hparams.items()}
    results = {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}
    return settings, results


def test_each_draw_has_its_settings_and_results(
    small_probe: Path, small_candidates: Path, tmp_path: Path
) -> None:
    run, _ = read_tensors(small_candidates, CANDIDATES)
    assert len(run["draw"]) == 3
    for draw in run["draw"].tolist():
        settings, results = entry(small_candidates.parent, draw)
        assert settings == {
            name: pytest.approx(float(run[name][draw]))
            for name in ("learning_rate", "init_std", "lambda_min", "relu_alpha")
        }
        assert results["draw/residual"] == pytest.approx(float(run["residual"][draw]))
    # The start's spread is the one that is noted.
    spread = run["init_std"]
    assert len(set(spread.tolist())) == 3
    assert bool(((spread > 1e-3) & (spread < 0.1)).all())

    words = [
        *("test", f"--config={REPOSITORY}/configs/quickstart/evaluate.yaml", *quiet(tmp_path)),
        *("--data.num_train=20", f"--model.probe={small_probe}"),
        *(f"--model.candidates={small_candidates}", "--model.representatives=null"),
    ]
    assert run_cli(*words) == 0
    counts = json.loads((tmp_path / "metrics.json").read_text())["draw_trust"]["recovered"]
    for draw, count in enumerate(counts):
        assert entry(tmp_path, draw)[1]["draw/recovered"] == count
