"""Which process writes results, and when none does."""

import lightning as L


def writes_results(trainer: L.Trainer) -> bool:
    """Whether this process is the one that writes what a stage found.

    That is the first one, and none under ``--trainer.fast_dev_run``: what a batch or two give is
    not to replace the results of a whole run.
    """
    return trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]
