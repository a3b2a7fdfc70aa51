"""Sizes that take seconds, by option, for what a stage trains or does."""

from tests.conftest import REPOSITORY

CONFIGS = REPOSITORY / "configs"

PROBE = {
    "data.num_train": 20,
    "model.hidden": [50],
    "model.epochs_per_step": 10,
    "trainer.max_epochs": 2,
}
CHECK = {"data.num_train": 20, "model.hidden": [50]}
ATTACK = {
    "model.num_draws": 2,
    "model.num_candidates": 20,
    "model.iterations": 20,
    "model.iterations_per_step": 10,
}
SELECT = {"model.top": 10}
EVALUATE = {"data.num_train": 20}
