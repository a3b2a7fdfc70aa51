"""The chain of a membership attack on a folder of images: trained, attacked, judged."""

import csv
import gc
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.utils.data import BatchSampler

from artifacts.errors import InputError
from artifacts.tensors import MEMBERSHIP_SCORES, read_tensors
from artifacts.training_record import TrainingRecord
from artifacts.weights import read_state_dict
from lightning_modules.membership_roles import require_role, require_shared_encoder
from lightning_modules.victim import load_autoencoder
from tests.conftest import quiet, run_cli

SMALL = [
    *("--model.size=tiny", "--model.image_size=32", "--model.depth=1", "--model.embed_dim=32"),
    *("--model.num_heads=2", "--model.decoder_embed_dim=16", "--model.augmentation=none"),
    *("--model.base_learning_rate=0.016", "--model.warmup_epochs=1", "--trainer.max_epochs=3"),
    "--trainer.callbacks=callbacks.EncoderWriter",
]
DECODER = ["--model.base_learning_rate=0.016", "--model.warmup_epochs=1", "--trainer.max_epochs=2"]
LAST = "checkpoints/last.ckpt"
ATTACK = ["--model.num_masks=4", "--model.bootstrap=50"]


def fit(root: Path, stage: str, model: str, *words: str) -> Path:
    """Runs a training and returns its checkpoint."""
    assert (
        run_cli(
            "fit",
            f"--config={root / 'data.yaml'}",
            f"--model={model}",
            *words,
            *quiet(root / stage),
            "--trainer.num_sanity_val_steps=0",
        )
        == 0
    )
    return root / stage / "checkpoints" / "last.ckpt"


def decoders(root: Path, prefix: str = "") -> dict[str, Path]:
    """What the attacker trains once the target is released."""
    splits = f"--data.splits={root / 'target' / 'membership_splits.json'}"
    start = f"--model.decoder={root / 'shadow' / 'checkpoints' / 'last.ckpt'}"
    return {
        name: fit(
            root,
            prefix + name,
            "ShadowDecoder",
            f"--model.encoder={root / encoder / 'encoder.safetensors'}",
            start,
            splits,
            f"--data.part={part}",
            *DECODER,
        )
        for name, encoder, part in (
            ("simulated", "target", "shadow_1"),
            ("target_decoder", "target", "pool"),
            ("shadow_decoder", "shadow", "pool"),
        )
    }


def attack(root: Path, command: str, stage: str, made: dict[str, Path], *words: str) -> Path:
    """Runs the attack and returns its directory."""
    callback = "MembershipWriter" if command == "test" else "MembershipScoreWriter"
    assert (
        run_cli(
            command,
            f"--config={root / 'data.yaml'}",
            "--model=MembershipInference",
            f"--data.splits={root / 'target' / 'membership_splits.json'}",
            f"--model.target={made['target_decoder']}",
            f"--model.simulated={made['simulated']}",
            f"--model.shadows=[{root / 'shadow' / 'checkpoints' / 'last.ckpt'}]",
            f"--model.references=[{made['shadow_decoder']}]",
            f"--trainer.callbacks=callbacks.{callback}",
            *ATTACK,
            *words,
            *quiet(root / stage),
        )
        == 0
    )
    return root / stage


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished chain on PNG files."""
    root = tmp_path_factory.mktemp("membership")
    digits = load_digits()
    for number in range(150):
        folder = root / "images" / str(digits.target[number])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.kron(digits.images[number] * 15, np.ones((4, 4))).astype(np.uint8)
        Image.fromarray(pixels).convert("RGB").save(folder / f"{number}.png")
    questioned = root / "questioned"
    questioned.mkdir()
    shutil.copytree(root / "images" / "3", root / "threes")
    for number in range(150, 157):
        pixels = np.kron(digits.images[number] * 15, np.ones((4, 4))).astype(np.uint8)
        Image.fromarray(pixels).convert("RGB").save(questioned / f"{number}.png")
    source = {
        "class_path": "datamodules.ImageFolderDataModule",
        "init_args": {"root": str(root / "images"), "image_size": 32},
    }
    asked = {**source, "init_args": {"root": str(questioned), "image_size": 32}}
    sizes = {"target_train": 24, "target_test": 24, "shadow_train": 24, "shadow_test": 24}
    sizes |= {"pool": 16, "population": 12, "downstream": 20}
    data = {"source": source, "questioned": asked, "sizes": sizes, "batch_size": 8}
    config = {"data": {"class_path": "datamodules.MembershipSplits", "init_args": data}}
    (root / "data.yaml").write_text(yaml.safe_dump(config))
    fit(root, "target", "MAEPretraining", *SMALL)
    splits = f"--data.splits={root / 'target' / 'membership_splits.json'}"
    part = "--data.part=shadow_1"
    fit(root, "shadow", "MAEPretraining", *SMALL, splits, part, "--model.seed=1")
    made = decoders(root)
    true = f"--model.true_target={root / 'target' / 'checkpoints' / 'last.ckpt'}"
    attack(root, "test", "attack", made, true)
    attack(root, "predict", "asked", made)
    attack(root, "predict", "threes_asked", made, f"--data.questioned.root={root / 'threes'}")
    # The same as strangers would give them: weights alone.
    for stage in ("target", "shadow"):
        torch.save(weights(root / stage / LAST), root / f"bare_{stage}")
    with safe_open(root / "target" / "encoder.safetensors", framework="pt") as file:
        damaged = {**file.metadata(), "training_record": "{}"}
    encoder = load_file(root / "target" / "encoder.safetensors")
    save_file(encoder, root / "damaged.safetensors", metadata=damaged)
    return root


def weights(path: Path) -> dict[str, Tensor]:
    return read_state_dict(path, what="checkpoint", made_by="the test")


def test_the_encoder_stays_as_it_was_released(chain: Path) -> None:
    for stage, released in (
        ("simulated", "target"),
        ("target_decoder", "target"),
        ("shadow_decoder", "shadow"),
    ):
        encoder = weights(chain / released / "encoder.safetensors")
        joined = weights(chain / stage / "checkpoints" / "last.ckpt")
        inside = {
            name.removeprefix("model.encoder."): value
            for name, value in joined.items()
            if name.startswith("model.encoder.")
        }
        assert inside.keys() == encoder.keys()
        assert all(torch.equal(value, encoder[name]) for name, value in inside.items())
        # The decoder started as the shadow's, and was trained.
        shadow = weights(chain / "shadow" / "checkpoints" / "last.ckpt")
        head = "model.decoder.pred.weight"
        assert joined[head].shape == shadow[head].shape
        assert not torch.equal(joined[head], shadow[head])


def test_questioned_images_get_scores_and_verdicts(chain: Path) -> None:
    metrics = json.loads((chain / "attack" / "metrics.json").read_text())
    with (chain / "asked" / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [f"{number}.png" for number in range(150, 157)]
    names = {column.removesuffix(" score") for column in rows[0] if column.endswith(" score")}
    assert names == set(metrics["attacks"]) - {"true_decoder"}
    for row in rows:
        for name in names:
            below = float(row[f"{name} score"]) < metrics["attacks"][name]["threshold"]
            assert row[f"{name} member"] == str(int(below))


def test_images_that_the_attack_learned_from_are_named(chain: Path) -> None:
    splits = json.loads((chain / "target" / "membership_splits.json").read_text())["parts"]
    part_of = {name: part for part, of in splits.items() for name in of["identifiers"]}
    with (chain / "threes_asked" / "scores.csv").open(encoding="utf-8") as file:
        rows = {row["image"]: row["learned from"] for row in csv.DictReader(file)}
    assert len(rows) > 10
    expected = {name: part_of.get(f"3/{name}", "") for name in rows}
    learned = {n: "" if part.startswith("target") else part for n, part in expected.items()}
    assert rows == learned
    assert len(set(rows.values())) > 3
    with (chain / "asked" / "scores.csv").open(encoding="utf-8") as file:
        assert {row["learned from"] for row in csv.DictReader(file)} == {""}


class LiveTensors(L.Callback):
    """How many tensors there are before some batches, and who chooses the images."""

    counts: ClassVar[list[int]] = []

    def on_predict_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        # Lightning's own sampler would keep the index of every image.
        loader: Any = trainer.predict_dataloaders
        assert type(loader.loader.batch_sampler) is BatchSampler
        if batch_idx in (2, 12, 24):
            self.counts.append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))


def test_predictions_do_not_pile_up(chain: Path) -> None:
    writer = {"class_path": "callbacks.MembershipScoreWriter"}
    counter = {"class_path": f"{__name__}.LiveTensors"}
    made = {n: chain / n / LAST for n in ("simulated", "target_decoder", "shadow_decoder")}
    LiveTensors.counts.clear()
    attack(
        chain,
        "predict",
        "streamed",
        made,
        f"--data.questioned.root={chain / 'images'}",
        "--data.batch_size=6",
        "--model.attacks=[paper]",
        f"--trainer.callbacks={json.dumps([writer, counter])}",
    )
    counts = LiveTensors.counts
    assert len(counts) == 3
    assert len(set(counts)) == 1


def test_metrics_are_those_of_the_scores(chain: Path) -> None:
    metrics = json.loads((chain / "attack" / "metrics.json").read_text())
    tensors, metadata = read_tensors(chain / "attack" / "scores.safetensors", MEMBERSHIP_SCORES)
    names = json.loads(metadata["attacks"])
    assert set(names) == set(metrics["attacks"])
    assert {"paper", "combined", "baseline_a", "baseline_d", "true_decoder"} <= set(names)
    # One shadow is too few for it.
    assert "likelihood_ratio" not in names
    truth = np.r_[np.ones(24), np.zeros(24)]
    for index, name in enumerate(names):
        scores = torch.cat([tensors["members"][index], tensors["non_members"][index]]).numpy()
        values = metrics["attacks"][name]
        assert values["auc"] == pytest.approx(roc_auc_score(truth, -scores))
        called = scores < values["threshold"]
        assert values["asr"] == pytest.approx(float((called == truth).mean()))
        low, high = values["intervals"]["auc"]
        assert low <= values["auc"] <= high


def test_events_hold_the_roc_and_the_histograms(chain: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(chain / "attack"), size_guidance={"images": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    assert {"membership/roc", "membership/scores/paper"} <= set(tags["images"])
    assert {"membership/combined/asr", "membership/baseline_d/auc"} <= set(tags["scalars"])


def test_the_report_shows_all_attacks(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = chain / "report.html"
    metrics = chain / "attack" / "metrics.json"
    assert run_cli("report", f"--metrics={metrics}", f"--output={page}") == 0
    assert "baseline D" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/png") == 1 + len(json.loads(metrics.read_text())["attacks"])
    assert "the paper&#39;s: reconstruction error, one mask" in text
    assert "What may not be concluded" in text


SHADOWS = "--model.shadows=[{root}/%s/checkpoints/last.ckpt]"
REFERENCES = "--model.references=[{root}/%s/checkpoints/last.ckpt]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.attacks=[likelihood_ratio]"], "needs two shadow models"),
        (["--model.attacks=[combined]", "--model.num_masks=1"], "needs two masks"),
        (["--model.attacks=[guess]"], "unknown attack 'guess'"),
        (["--model.attacks=[]"], "must name at least one attack"),
        (["--model.attacks=[paper, paper]"], "each once, got ['paper', 'paper']"),
        (["--model.seed=-1"], "seed must be from 0 to 2^63 - 1"),
        (["--data.seed=-1"], "seed must be from 0 to 2^63 - 1"),
        (
            ["--data.num_shadows=2", "--data.sizes.downstream=0"],
            "data.num_shadows is 2, but there are 1",
        ),
        (["--model.target={root}/target/encoder.safetensors"], "holds no trained decoder"),
        (["--model.mask_ratio=0.5"], "was trained at mask ratio 0.75, not 0.5"),
        # The decoder of the encoder's owner.
        (["--model.target={root}/target/checkpoints/last.ckpt"], "which no attacker has"),
        (["--model.simulated={root}/target/checkpoints/last.ckpt"], "which no attacker has"),
        # One in the place of another.
        ([SHADOWS % "shadow_decoder", REFERENCES % "shadow"], "shadows and references swapped"),
        ([SHADOWS % "target"], "stands where that of 'shadow_1' belongs"),
        ([REFERENCES % "target_decoder"], "stands where that of 'shadow_1' belongs"),
        (["--model.target={root}/shadow_decoder/checkpoints/last.ckpt"], "that of 'target' bel"),
        (["--model.true_target={root}/target_decoder/checkpoints/last.ckpt"], "simulated decoder"),
        (["--model.true_target={root}/shadow/checkpoints/last.ckpt"], "that of 'target' belongs"),
        # Files that tell nothing: the weights do.
        ([SHADOWS.replace("/checkpoints/last.ckpt", "") % "bare_target"], "it is no shadow"),
        ([REFERENCES.replace("/checkpoints/last.ckpt", "") % "bare_target"], "another encoder"),
        (["--model.true_target={root}/bare_shadow"], "has that of model.target"),
        # Another draw of the parts.
        (["--data.seed=1"], "was trained as 'target' of another split"),
        (["--data.sizes.pool=15"], "of another split"),
    ],
)
def test_what_cannot_be_attacked_is_said_in_one_line(
    words: list[str],
    message: str,
    chain: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run_cli(
        "test",
        f"--config={chain / 'data.yaml'}",
        "--model=MembershipInference",
        f"--model.target={chain / 'target_decoder' / LAST}",
        f"--model.shadows=[{chain / 'shadow' / LAST}]",
        f"--model.references=[{chain / 'shadow_decoder' / LAST}]",
        *ATTACK,
        *(word.format(root=chain) for word in words),
        *quiet(tmp_path),
    )
    printed = capsys.readouterr().err
    assert code == 1
    assert message in printed
    assert printed.count("\n") == 1


def test_a_refused_attack_leaves_what_the_last_one_was_made_with(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "attack"
    shutil.copytree(chain / "attack", root)
    names = ("membership_splits.json", "config_test.yaml", "metrics.json")
    before = [(root / name).read_bytes() for name in names]
    code = run_cli(
        "test",
        f"--config={chain / 'data.yaml'}",
        "--model=MembershipInference",
        f"--model.target={chain / 'target_decoder' / LAST}",
        f"--model.shadows=[{chain / 'shadow' / LAST}]",
        f"--model.references=[{chain / 'shadow_decoder' / LAST}]",
        "--data.seed=1",
        *quiet(root),
    )
    assert code == 1
    assert "of another split" in capsys.readouterr().err
    assert [(root / name).read_bytes() for name in names] == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.part=target"], "data.part is 'target': the decoder would be trained on"),
        (["--model.decoder={root}/target/checkpoints/last.ckpt"], "which no attacker has"),
        (
            ["--model.encoder={root}/bare_target", "--model.decoder={root}/bare_target"],
            "which no attacker has",
        ),
        (["--data.seed=1"], "encoder.safetensors was trained as 'target' of another split"),
        (
            ["--model.encoder={root}/bare_target", "--data.seed=1"],
            "last.ckpt was trained as 'shadow_1' of another split",
        ),
        (["--model.mask_ratio=0.999"], "leaves none of 16 patches visible"),
        (
            ["--model.encoder={root}/damaged.safetensors"],
            "has a damaged training_record",
        ),
    ],
)
def test_what_a_decoder_cannot_be_trained_with(
    words: list[str],
    message: str,
    chain: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run_cli(
        "fit",
        f"--config={chain / 'data.yaml'}",
        "--model=ShadowDecoder",
        f"--model.encoder={chain / 'target' / 'encoder.safetensors'}",
        f"--model.decoder={chain / 'shadow' / LAST}",
        "--data.part=pool",
        *DECODER,
        *(word.format(root=chain) for word in words),
        *quiet(tmp_path),
    )
    printed = capsys.readouterr().err
    assert code == 1
    assert message in printed
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.mask_ratio=0.999"], "leaves none of 16 patches visible"),
        (["--data.part=shadow_1", "--model.weights={root}/target/checkpoints/last.ckpt"], "own"),
    ],
)
def test_what_a_shadow_cannot_be_trained_with(
    words: list[str],
    message: str,
    chain: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = (word.format(root=chain) for word in words)
    small = [word for word in SMALL if "decoder" not in word]
    config = f"--config={chain / 'data.yaml'}"
    assert run_cli("fit", config, "--model=MAEPretraining", *small, *filled, *quiet(tmp_path)) == 1
    assert message in capsys.readouterr().err


def test_a_published_decoder_is_the_owner_s(chain: Path) -> None:
    """As ``mae_visualize_vit_base.pth`` has one; this project writes other names."""
    loaded = load_autoencoder(chain / "target" / LAST)
    published = replace(loaded, origin="official", training=None)
    require_role("true_target", "x", published, {})
    with pytest.raises(InputError, match="which no attacker has"):
        require_role("simulated", "x", published, {})


def test_what_was_trained_on_no_part_of_a_split_stands_for_none(chain: Path) -> None:
    """Only the attacked encoder, and its owner's decoder, may come from any training."""
    loaded = load_autoencoder(chain / "shadow_decoder" / LAST)
    anywhere = TrainingRecord("autoencoder", 0.75, "", "x")
    decoder = replace(loaded, training=TrainingRecord("decoder", 0.75, "pool", "y", anywhere))
    require_role("target", "x", decoder, {"pool": "y"})
    require_role("true_target", "x", replace(loaded, training=anywhere), {"pool": "y"})
    strays = {
        "shadow_0": anywhere,
        "target": TrainingRecord("decoder", 0.75, "", "x", anywhere),
        "reference_0": TrainingRecord("decoder", 0.75, "", "x", anywhere),
    }
    for role, record in strays.items():
        with pytest.raises(InputError, match="on no part of the split"):
            require_role(role, "x", replace(loaded, training=record), {"pool": "y"})


def test_the_owner_s_decoder_is_known_by_its_weights(chain: Path) -> None:
    owner = load_autoencoder(chain / "target" / LAST).model
    attacker = load_autoencoder(chain / "target_decoder" / LAST).model
    paths = {"target": "a", "simulated": "b", "true_target": "c"}
    require_shared_encoder(paths, {"target": attacker, "simulated": attacker, "true_target": owner})
    with pytest.raises(InputError, match="b has the decoder of c"):
        require_shared_encoder(
            paths, {"target": attacker, "simulated": owner, "true_target": owner}
        )


def test_a_stranger_s_encoder_and_one_s_own_are_attacked_alike(chain: Path, tmp_path: Path) -> None:
    """An encoder's file that tells nothing about its training changes no bit."""
    shutil.copy(chain / "data.yaml", tmp_path / "data.yaml")
    path = fit(
        tmp_path,
        "decoder",
        "ShadowDecoder",
        f"--model.encoder={chain / 'bare_target'}",
        f"--model.decoder={chain / 'shadow' / LAST}",
        "--data.part=pool",
        *DECODER,
    )
    ours, theirs = weights(chain / "target_decoder" / LAST), weights(path)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_evaluation_may_see_members(chain: Path, tmp_path: Path) -> None:
    """Only training on them is refused."""
    config = f"--config={chain / 'data.yaml'}"
    words = [
        "--model=ShadowDecoder",
        f"--model.encoder={chain / 'target' / 'encoder.safetensors'}",
        f"--model.decoder={chain / 'shadow' / LAST}",
    ]
    assert run_cli("test", config, *words, *quiet(tmp_path)) == 0


def test_a_decoder_of_another_size_is_refused(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in SMALL if "embed_dim=32" not in word and "max_epochs" not in word]
    other = [*words, "--model.embed_dim=64", "--trainer.max_epochs=2", "--data.part=shadow_1"]
    shutil.copy(chain / "data.yaml", tmp_path / "data.yaml")
    path = fit(tmp_path, "other", "MAEPretraining", *other)
    code = run_cli(
        "fit",
        f"--config={chain / 'data.yaml'}",
        "--model=ShadowDecoder",
        f"--model.encoder={chain / 'target' / 'encoder.safetensors'}",
        f"--model.decoder={path}",
        *DECODER,
        *quiet(tmp_path / "decoder"),
    )
    assert code == 1
    assert "their embed_dim are 64 and 32" in capsys.readouterr().err
