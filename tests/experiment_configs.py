"""How the papers' experiments are reduced for a test, on top of the small scale."""

from dataclasses import dataclass, field
from typing import Any

from tests.reductions import ATTACK, CHECK, EVALUATE, PROBE, SELECT


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        rows: Rows of its table.
        grid: Fewer values.
        options: Reductions by stage.
    """

    rows: int = 1
    grid: dict[str, list[Any]] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


_DIRECTORY = "transfer_reconstruction"
_TRAJECTORY = "trajectory_{dataset}-{backbone}-n{train}-w{hidden}-wd{wd}-seed{seed}"
EXPERIMENTS = {
    f"{_DIRECTORY}/fig03_models.yaml": Experiment(),
    f"{_DIRECTORY}/fig04a_food101.yaml": Experiment(),
    f"{_DIRECTORY}/fig04b_inaturalist.yaml": Experiment(),
    f"{_DIRECTORY}/fig07_clusters.yaml": Experiment(),
    f"{_DIRECTORY}/fig11_ssim.yaml": Experiment(),
    f"{_DIRECTORY}/fig12_training_length.yaml": Experiment(
        rows=2,
        grid={"epoch": [4, 9]},
        options={_TRAJECTORY: {"trainer.max_epochs": 10}},
    ),
    f"{_DIRECTORY}/fig13_size_width.yaml": Experiment(rows=2, grid={"n": [20], "width": [10, 30]}),
    f"{_DIRECTORY}/fig14_cls_mean.yaml": Experiment(),
    f"{_DIRECTORY}/fig18_activation_maximisation.yaml": Experiment(rows=2),
    f"{_DIRECTORY}/fig28_weight_decay.yaml": Experiment(rows=2, grid={"wd": [0.0, 0.16]}),
}
# Which of them run in a test on photos; one for each kind of stand-in.
ON_PHOTOS = {
    f"{_DIRECTORY}/fig04b_inaturalist.yaml": Experiment(
        options={
            "probe_seed{seed}": {"data.num_train": 18},
            "reconstruct_seed{seed}": {"model.num_candidates": 21},
            "evaluate_seed{seed}": {"data.num_train": 18},
        }
    ),
    f"{_DIRECTORY}/fig11_ssim.yaml": Experiment(),
    f"{_DIRECTORY}/fig13_size_width.yaml": Experiment(grid={"n": [20], "width": [10]}),
}
# By the first word of a stage's name.
REDUCTIONS: dict[str, dict[str, Any]] = {
    "probe": PROBE,
    "trajectory": PROBE,
    "check": CHECK,
    "reconstruct": ATTACK,
    "maximise": ATTACK,
    "select": SELECT,
    "evaluate": EVALUATE,
    "clusters": EVALUATE,
}
EXPERIMENT_CONFIGS = {
    *EXPERIMENTS,
    # Parts of experiments.
    *(
        f"{_DIRECTORY}/{name}.yaml"
        for name in (
            "candidates_500",
            "four_classes",
            "many_candidates",
            "reconstruct",
        )
    ),
    "data/digits.yaml",
    "data/digits_multiclass.yaml",
    "scale/small.yaml",
    "scale/photos.yaml",
    "scale/photos_as_pixels.yaml",
    "scale/photos_three_classes.yaml",
    "scale/pixels_112.yaml",
    "scale/three_classes.yaml",
    "scale/paper_recipe.yaml",
    "scale/candidates_252.yaml",
    "scale/candidates_400.yaml",
    "scale/decoder_small.yaml",
    "scale/mae_small.yaml",
}
