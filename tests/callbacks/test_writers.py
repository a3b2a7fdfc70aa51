"""What holds for every callback that writes results."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import callbacks
import lightning_modules as modules
from datamodules import ImageFolderDataModule, MembershipSplits

# For each writer the module that it goes with and its data, and the hooks in which it writes.
WRITERS: dict[str, tuple[type, type | None, tuple[str, ...]]] = {
    "AttackabilityWriter": (modules.ProbeMLP, None, ("on_test_end",)),
    "CandidateWriter": (modules.KKTReconstruction, None, ("on_fit_end",)),
    "ClusterCurveWriter": (modules.ClusterCountEvaluation, None, ("on_test_end",)),
    "EncoderWriter": (modules.MAEPretraining, None, ("on_fit_end",)),
    "InversionEvaluationWriter": (modules.InversionEvaluation, None, ("on_test_end",)),
    "InversionWriter": (
        modules.UnCLIPInversion,
        None,
        ("on_search_step", "on_predict_batch_end", "on_predict_end"),
    ),
    "MembershipScoreWriter": (
        modules.MembershipInference,
        MembershipSplits,
        ("on_predict_start", "on_predict_batch_end", "on_predict_end"),
    ),
    "MembershipWriter": (modules.MembershipInference, None, ("on_test_end",)),
    "RecoveryWriter": (modules.ReconstructionEvaluation, None, ("on_test_end",)),
    "RepresentativeWriter": (
        modules.RepresentativeSelection,
        None,
        ("on_predict_batch_end",),
    ),
    "ResolutionWriter": (modules.ProbeMLP, ImageFolderDataModule, ("on_fit_start",)),
}


def test_every_writer_is_listed() -> None:
    assert set(WRITERS) == {name for name in callbacks.__all__ if name.endswith("Writer")}


@pytest.mark.parametrize("name", WRITERS)
def test_a_trial_run_leaves_the_results_of_a_whole_run(name: str, tmp_path: Path) -> None:
    """What each writer would have to read of a run is not there: only a guard passes."""
    kind, data, hooks = WRITERS[name]
    writer: Any = getattr(callbacks, name)()
    trainer = MagicMock(fast_dev_run=1, is_global_zero=True, default_root_dir=str(tmp_path))
    trainer.loggers = []
    trainer.datamodule = MagicMock(spec=data)
    module = MagicMock(spec=kind)
    module.attackability = MagicMock()
    batch: dict[str, Any] = {"index": [0]}
    search = MagicMock(done=True, members=[])
    search.settings.judge_every = search.iteration = 10
    (tmp_path / "search_00000.ckpt").touch()
    arguments = {
        "on_predict_batch_end": (batch, batch, 0),
        "on_search_step": (search, batch),
    }
    for hook in hooks:
        getattr(writer, hook)(trainer, module, *arguments.get(hook, ()))
    assert [path.name for path in tmp_path.iterdir()] == ["search_00000.ckpt"]
