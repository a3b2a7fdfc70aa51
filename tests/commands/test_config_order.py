"""Configs in an order that cannot be meant are refused, and the right order is named."""

import pytest

from tests.conftest import run_cli

PROBE = "configs/transfer_reconstruction/probe_binary.yaml"
DATA = "configs/data/food101_binary.yaml"
CLIP = "configs/backbones/clip.yaml"
CLS = "configs/backbones/cls_and_mean.yaml"


@pytest.mark.parametrize(
    ("files", "later", "earlier"),
    [
        ((PROBE, CLIP, DATA), CLIP, DATA),
        ((CLIP, PROBE, DATA), CLIP, DATA),
        ((PROBE, CLS, CLIP, DATA), CLS, DATA),
        # Digits, which the probe's own config has, would be taken without a word.
        ((DATA, PROBE), DATA, PROBE),
        ((DATA, CLIP, PROBE), DATA, PROBE),
    ],
)
def test_wrong_order(
    files: tuple[str, ...], later: str, earlier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--config={name}" for name in files]
    assert run_cli("fit", *words, "--print_config") == 1
    message = capsys.readouterr().err
    assert message.count(f"give --config {later} after --config {earlier}") == 1


@pytest.mark.parametrize("last", ["--data.backbone=vit_b16", f"--config={CLIP}"])
def test_right_order(last: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run_cli("fit", f"--config={PROBE}", f"--config={DATA}", last, "--print_config")
    assert stop.value.code == 0
    assert "backbone: " + ("clip_vit_l14" if last.endswith("yaml") else "vit_b16") in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("null", ["null", "None"])
def test_null_overrides_a_config_however_deep(
    null: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--config={PROBE}", f"--config={DATA}", f"--data.images.task={null}"]
    words += [f"--data.images.num_test={null}", f"--data.num_train={null}", "--print_config"]
    with pytest.raises(SystemExit) as stop:
        run_cli("fit", *words)
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for option in ("task", "num_test", "num_train"):
        assert f"{option}: null" in printed
        assert f"{option}: None" not in printed
