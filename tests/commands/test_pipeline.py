"""The chain of stages: from nothing to the report, once."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from lightning.pytorch.utilities import rank_zero_only
from scipy import stats
from sklearn.metrics.pairwise import cosine_similarity

from artifacts.errors import InputError
from artifacts.files import exclusive
from artifacts.tensors import CANDIDATES, EVALUATION, REPRESENTATIVES, read_tensors
from commands.pipeline import Stage, pipeline
from datamodules import DigitsDataModule
from lightning_modules.victim import load_probe
from tests.conftest import REPOSITORY, SMALL_ATTACK, SMALL_PROBE, quiet, run_cli

QUIET = dict(word.removeprefix("--").split("=") for word in quiet(Path("x"))[1:])


def small_pipeline(run: Path, **changes: dict[str, Any]) -> Path:
    """The shipped pipeline in ``run``, at a size that takes seconds, as a config file."""
    config = yaml.safe_load((REPOSITORY / "configs/quickstart/pipeline.yaml").read_text())
    config["run"] = str(run)
    small = {
        "probe": SMALL_PROBE,
        "reconstruct": SMALL_ATTACK,
        "select": ["--model.top=20"],
        "evaluate": ["--data.num_train=20"],
    }
    for name, words in small.items():
        options = dict(word.removeprefix("--").split("=") for word in words)
        stage = config["stages"][name]
        stage["options"] = {**QUIET, **options, **changes.get(name, {})}
    path = run.parent / f"{run.name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("pipeline") / "run"
    os.chdir(REPOSITORY)
    assert run_cli("pipeline", "--config", small_pipeline(run)) == 0
    return run


@pytest.fixture
def own_copy(finished: Path, tmp_path: Path) -> Iterator[Path]:
    """The finished run, under the same path, put back as it was after the test."""
    shutil.copytree(finished, tmp_path / "backup")
    yield finished
    shutil.rmtree(finished)
    shutil.copytree(tmp_path / "backup", finished)


def test_another_way_to_write_the_run_changes_nothing(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_pipeline(finished)
    elsewhere = Path(os.path.relpath(finished))
    assert run_cli("pipeline", f"--config={config}", f"--run={elsewhere}") == 0
    printed = capsys.readouterr().out
    assert "starts" not in printed
    assert printed.count("complete, skipped") == 5


def test_an_input_that_no_stage_makes_is_refused_at_once(tmp_path: Path) -> None:
    stages = {
        "first": Stage("report", options={"metrics": "x"}),
        "second": Stage("report", inputs={"metrics": "frist/metrics.json"}),
    }
    dispatched: list[list[str]] = []
    with pytest.raises(InputError, match=r"stage second takes metrics from 'frist/metrics\.json'"):
        pipeline(str(tmp_path / "run"), stages, dispatch=dispatched.append)
    assert not dispatched
    assert not (tmp_path / "run").exists()


def contents(run: Path) -> dict[str, bytes]:
    """Every result of a run; logs apart."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.suffix in (".safetensors", ".json", ".html", ".ckpt")
        and ".previous" not in str(path)
    }


def test_the_whole_job_leaves_its_results(finished: Path) -> None:
    metrics = json.loads((finished / "evaluate/metrics.json").read_text())
    assert metrics["num_train"] == 20
    for name in ("candidates", "representatives"):
        for threshold in ("0.75", "0.9"):
            counts = metrics[name]["cosine"][threshold]
            assert set(counts) == {"recovered", "null_held_out", "null_random"}
            assert all(0 <= count <= 20 for count in counts.values())
    assert set(metrics["ssim"]) == {"recovered", "null_held_out", "null_random"}
    page = (finished / "report/report.html").read_text()
    counts = metrics["candidates"]["cosine"]["0.75"]
    assert f"{counts['recovered']} of 20 training images recovered" in page
    assert page.count("data:image/png;base64,") == 6
    # Nothing is fetched to show the page.
    assert 'src="http' not in page
    assert "<script" not in page
    assert "<link" not in page


def test_a_report_takes_several_runs(finished: Path, tmp_path: Path) -> None:
    output = tmp_path / "both.html"
    shutil.copytree(finished / "evaluate", tmp_path / "other" / "evaluate_again")
    metrics = [
        f"{finished}/evalu<which>/metrics.json",
        f"{tmp_path}/other/evaluate_again/metrics.json",
    ]
    words = [f"--metrics={json.dumps(metrics)}", f"--output={output}"]
    assert run_cli("report", *words) == 0
    page = output.read_text()
    assert page.count("What may not be concluded") == 2
    assert "from a probe&#39;s weights: evaluate</h2>" in page
    assert "from a probe&#39;s weights: evaluate_again</h2>" in page
    assert page.count("data:image/png;base64,") == 2 * (
        finished / "report/report.html"
    ).read_text().count("data:image/png;base64,")


def test_a_report_begins_with_the_mean_over_seeds(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = [11, 17, 14]
    for seed, count in enumerate(counts):
        shutil.copytree(finished / "evaluate", tmp_path / "run" / f"evaluate_seed{seed}")
        path = tmp_path / "run" / f"evaluate_seed{seed}" / "metrics.json"
        metrics = json.loads(path.read_text())
        metrics["candidates"]["cosine"]["0.75"] |= {"recovered": count, "null_held_out": 2}
        path.write_text(json.dumps(metrics))
        (path.parent / "stage.json").unlink(missing_ok=True)
    words = [f"--metrics={tmp_path}/run/evaluate_seed<seed>/metrics.json", "--output"]
    assert run_cli("report", *words, tmp_path / "page.html") == 0
    low, high = stats.t.interval(0.95, 2, loc=np.mean(counts), scale=stats.sem(counts))
    expected = f"{np.mean(counts):.1f} ± {(high - low) / 2:.1f} of 20 training images recovered"
    first = f"{tmp_path}/run/evaluate: {expected} (cosine > 0.75), held-out samples 2.0 ± 0.0"
    assert capsys.readouterr().out.splitlines()[0] == f"{first}; mean of 3 runs"
    page = (tmp_path / "page.html").read_text()
    assert page.index(expected) < page.index("evaluate_seed0")
    # Runs of other directories are no seeds of one another.
    shutil.copytree(finished / "evaluate", tmp_path / "other" / "evaluate")
    both = [str(finished / "evaluate/metrics.json"), f"{tmp_path}/other/evaluate/metrics.json"]
    assert (
        run_cli("report", f"--metrics={json.dumps(both)}", *words[1:], tmp_path / "two.html") == 0
    )
    assert "mean of" not in capsys.readouterr().out
    del metrics["candidates"]["cosine"]["0.75"]
    path.write_text(json.dumps(metrics))
    assert run_cli("report", *words, tmp_path / "other.html") == 1
    assert "the runs cannot be averaged (KeyError('0.75'))" in capsys.readouterr().err
    assert not (tmp_path / "other.html").exists()


def test_counts_agree_with_scikit_learn(finished: Path) -> None:
    metrics = json.loads((finished / "evaluate/metrics.json").read_text())
    probe = load_probe(finished / "probe/checkpoints/last.ckpt")
    data = DigitsDataModule(num_train=20, seed=0)
    train = data.train_tensors[0].numpy()
    std = train.std(0, ddof=1)
    standardised = (train - train.mean(0)) / np.where(std > 0, std, 1)
    files = {
        "candidates": ("reconstruct/candidates.safetensors", CANDIDATES),
        "representatives": ("select/representatives.safetensors", REPRESENTATIVES),
    }
    for name, (path, schema) in files.items():
        vectors = read_tensors(finished / path, schema)[0][name].flatten(0, -2).numpy()
        best = cosine_similarity(standardised, vectors).max(1)
        for threshold, counts in metrics[name]["cosine"].items():
            assert counts["recovered"] == int((best > float(threshold)).sum())
    np.testing.assert_allclose(probe.mean.numpy(), train.mean(0), rtol=1e-5, atol=1e-7)
    evaluation = read_tensors(finished / "evaluate/evaluation.safetensors", EVALUATION)[0]
    run = read_tensors(finished / "reconstruct/candidates.safetensors", CANDIDATES)[0]
    vectors = run["candidates"].flatten(0, 1).numpy()
    nearest = vectors[cosine_similarity(standardised, vectors).argmax(1)]
    nearest = nearest / np.linalg.norm(nearest, axis=1, keepdims=True) * 8
    pictures = (nearest * np.where(std > 0, std, 1) + train.mean(0)).clip(0, 1)
    shown = evaluation["recovered_images"].flatten(1).numpy()
    np.testing.assert_allclose(shown, pictures, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(evaluation["train_images"].flatten(1).numpy(), train, atol=1e-6)
    margin = evaluation["margin"]
    layers = [weight.numpy() for weight, _ in probe.weights_and_biases()]
    outputs = np.maximum(standardised @ layers[0].T, 0) @ layers[1].T
    expected = outputs[:, 0] * data.train_tensors[1].numpy()
    np.testing.assert_allclose(margin.numpy(), expected, rtol=1e-3, atol=1e-5)


def test_events_hold_curves_and_figures(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def tags(stage: str) -> dict[str, list[str]]:
        accumulator = EventAccumulator(str(finished / stage), size_guidance={"images": 0})
        accumulator.Reload()
        found: dict[str, list[str]] = accumulator.Tags()
        return found

    assert {"train/loss", "val/accuracy", "train/gradient_norm"} <= set(tags("probe")["scalars"])
    assert {"residual/best", "residual/median"} <= set(tags("reconstruct")["scalars"])
    assert {
        "recovery/reconstructions",
        "recovery/similarity_against_margin",
        "recovery/residual",
    } <= set(tags("evaluate")["images"])


def test_finished_stages_are_skipped(own_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(own_copy)
    assert run_cli("pipeline", "--config", small_pipeline(own_copy)) == 0
    printed = capsys.readouterr().out
    assert printed.count("complete, skipped") == 5
    assert contents(own_copy) == before


def test_a_changed_setting_runs_its_stage_and_what_follows(
    own_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(own_copy)
    config = small_pipeline(own_copy, select={"model.top": 7})
    assert run_cli("pipeline", "--config", config) == 0
    printed = capsys.readouterr().out
    assert printed.count("complete, skipped") == 2
    assert printed.count("changed; the old results are in") >= 2
    after = contents(own_copy)
    for name, content in before.items():
        if name.startswith(("probe", "reconstruct")):
            assert after[name] == content
    metrics = json.loads((own_copy / "evaluate/metrics.json").read_text())
    assert metrics["representatives"]["count"] == 7
    old = json.loads((own_copy / "evaluate.previous/metrics.json").read_text())
    assert old["representatives"]["count"] != 7


def test_an_interrupted_stage_is_done_again_to_the_same_result(
    own_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(own_copy)
    # As a kill leaves it: the stage is marked as running, and its artifact is missing.
    marker = own_copy / "reconstruct/stage.json"
    state = json.loads(marker.read_text())
    marker.write_text(json.dumps({**state, "status": "running"}))
    (own_copy / "reconstruct/candidates.safetensors").unlink()
    assert run_cli("pipeline", "--config", small_pipeline(own_copy)) == 0
    assert "reconstruct: continues" in capsys.readouterr().out
    after = contents(own_copy)
    assert (
        after["reconstruct/candidates.safetensors"] == before["reconstruct/candidates.safetensors"]
    )


def test_a_resumed_probe_leaves_what_follows(
    own_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(own_copy)
    # As a kill leaves it: marked as running, with a checkpoint of an earlier epoch.
    marker = own_copy / "probe/stage.json"
    state = json.loads(marker.read_text())
    shutil.rmtree(own_copy / "probe/checkpoints")
    assert run_cli(*state["command"], "--trainer.max_epochs=5") == 0
    marker.write_text(json.dumps({**state, "status": "running"}))
    assert run_cli("pipeline", "--config", small_pipeline(own_copy)) == 0
    printed = capsys.readouterr().out
    assert "probe: continues" in printed
    assert printed.count("complete, skipped") == 4
    after = contents(own_copy)
    # Equal values, not bytes: else this test would say nothing.
    last = "probe/checkpoints/last.ckpt"
    assert after.pop(last) != before.pop(last)
    assert after == before


def test_what_a_change_moved_aside_comes_back_when_it_is_undone(
    own_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(own_copy)
    candidates = own_copy / "reconstruct/candidates.safetensors"
    candidates.write_bytes(before["reconstruct/candidates.safetensors"][:-100])
    for _ in range(2):
        assert run_cli("pipeline", "--config", small_pipeline(own_copy)) == 1
        assert f"{candidates} is not a readable safetensors file" in capsys.readouterr().err
        kept = own_copy / "select.previous/representatives.safetensors"
        assert kept.read_bytes() == before["select/representatives.safetensors"]
    candidates.write_bytes(before["reconstruct/candidates.safetensors"])
    assert run_cli("pipeline", "--config", small_pipeline(own_copy)) == 0
    printed = capsys.readouterr().out
    assert "select: complete, its results before the last change fit" in printed
    assert "starts" not in printed
    assert contents(own_copy) == before


def test_files_of_earlier_stages_count_wherever_they_are_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ran: list[str] = []

    def work(words: list[str]) -> None:
        ran.append(words[0])
        if words[0] == "fit":
            (run / "train/shadow.pth").write_text("a")
            (run / "train/metrics.json").write_text("a")
        (run / "page.html").write_text(str(len(ran)))

    stages = {
        "train": Stage("fit", outputs=["shadow.pth", "metrics.json"]),
        "attack": Stage("test", options={"model.shadows": ["{run}/train/shadow.pth"]}),
        "table": Stage("report", options={"run": "{run}", "output": "{run}/page.html"}),
    }
    for changed, again in (
        ("page.html", ["fit", "test", "report"]),
        ("train/shadow.pth", []),
        ("train/metrics.json", ["test"]),
        ("page.html", ["report"]),
    ):
        ran.clear()
        pipeline(str(run), stages, dispatch=work)
        assert ran == again
        (run / changed).write_text("b")


def test_what_another_pipeline_made_counts_where_it_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ran: list[str] = []
    for name in ("attack", "attack.previous", "begun"):
        (run / name).mkdir(parents=True)
        (run / name / "metrics.json").write_text("a")
    (run / "attack/weights.pth").write_text("a")
    (run / "begun/stage.json").write_text('{"status": "running"}')
    stages = {
        "own": Stage("test", options={"model.target": "{run}/attack/weights.pth"}),
        "table": Stage("report", options={"run": "{run}"}, outputs=["own.json"]),
    }

    def work(words: list[str]) -> None:
        ran.append(words[0])
        (run / "table").mkdir(exist_ok=True)
        (run / "table/own.json").write_text(str(len(ran)))

    for changed, again in (
        ("attack.previous/metrics.json", ["test", "report"]),
        ("begun/metrics.json", []),
        ("attack/metrics.json", []),
        ("attack/weights.pth", ["report"]),
        ("begun/metrics.json", ["test"]),
    ):
        ran.clear()
        pipeline(str(run), stages, dispatch=work)
        assert ran == again, changed
        (run / changed).write_text("b")


def test_options_that_name_a_class_are_passed_on(own_copy: Path) -> None:
    callback = {"class_path": "callbacks.LastCheckpoint", "init_args": {"interval": 0.0}}
    config = small_pipeline(own_copy, reconstruct={"trainer.callbacks+": callback})
    assert run_cli("pipeline", "--config", config) == 0
    stage = yaml.safe_load((own_copy / "reconstruct/config.yaml").read_text())
    last = stage["trainer"]["callbacks"][-1]
    assert (last["class_path"], last["init_args"]["interval"]) == ("callbacks.LastCheckpoint", 0.0)


def test_a_failing_stage_stops_the_chain(tmp_path: Path) -> None:
    ran: list[str] = []

    def fail(words: list[str]) -> None:
        ran.append(words[0])
        raise InputError("wrong")

    stages = {"a": Stage("fit", outputs=["x"]), "b": Stage("test", inputs={"model.x": "a/x"})}
    with pytest.raises(InputError, match="wrong"):
        pipeline(str(tmp_path), stages, dispatch=fail)
    assert ran == ["fit"]
    assert json.loads((tmp_path / "a/stage.json").read_text())["status"] == "running"


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Stage("fit", config=["missing.yaml"]), "no config file at missing.yaml"),
        (Stage("fit", inputs={"model.x": "s/x"}), "no input model.x of stage s at"),
        (Stage("fit", inputs={"model.x": ""}), "no stage is named ''"),
        (Stage("fit", outputs=["never"]), "no output of stage s at"),
    ],
)
def test_missing_files_are_named(stage: Stage, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        pipeline(str(tmp_path), {"s": stage}, dispatch=lambda words: None)


def test_stages_get_their_paths(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    record: Callable[[list[str]], None] = seen.append
    stage = Stage("report", options={"evaluation": "{run}/e", "output": "{stage}/r", "n": 3})
    pipeline(str(tmp_path), {"s": stage}, dispatch=record)
    assert seen == [["report", f"--evaluation={tmp_path}/e", f"--output={tmp_path}/s/r", "--n=3"]]


def test_one_process_at_a_time_works_at_a_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def dispatch(words: list[str]) -> None:
        begun.append(1)
        assert go_on.wait(30)
        (tmp_path / "run" / "first" / "made.json").write_text("{}")

    def run() -> None:
        stage = Stage("report", outputs=["made.json"])
        pipeline(str(tmp_path / "run"), {"first": stage}, dispatch=dispatch)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    shown = ""
    while "another process is at this stage" not in shown:
        shown += capsys.readouterr().out
        time.sleep(0.01)
    assert begun == [1]
    go_on.set()
    for thread in threads:
        thread.join(30)
    # The second finds it complete.
    assert begun == [1]
    assert "complete, skipped" in shown + capsys.readouterr().out


def test_further_tasks_of_srun_do_not_wait_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    seen: list[list[str]] = []
    with exclusive(tmp_path / ".locks" / "first", lambda: None):
        pipeline(str(tmp_path), {"first": Stage("report")}, dispatch=seen.append)
    assert len(seen) == 1
