"""Writes inverted images as they finish, and lets a stopped inversion continue."""

import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from artifacts.checkpoints import write_checkpoint
from artifacts.errors import InputError
from artifacts.files import atomic_path, write_json
from artifacts.inversions import finished_images, image_path, merge_images
from artifacts.tensors import INVERSION, write_tensors
from artifacts.weights import read_checkpoint
from attacks.image_search import ImageSearch
from callbacks.provenance import provenance
from callbacks.writing import writes_results
from lightning_modules.image_search import GeneratedImages, SearchCallback
from lightning_modules.inverted_images import Batch, InvertedImages

# What a batch says about its images that goes into their files.
CARRIED = ("target", "label", "score")


class InversionWriter(SearchCallback):
    """Writes ``images/00000.png`` and ``.safetensors`` for each image, then all of them together.

    In the run directory: an image's files as soon as it is finished; ``search_N.ckpt`` while the
    batch from image N on is searched for, from which a run that was killed continues to the same
    result; and, once all images are there, ``inversions.safetensors``, ``inversions.json`` and the
    grid ``inversions.png``. Shares of a job array write into one directory; the last to end writes
    these.

    Args:
        save_every: Seconds between two saves of the state of a search.
        snapshot_every: Iterations between two looks at the best images so far in TensorBoard.
    """

    def __init__(self, save_every: float = 120.0, snapshot_every: int = 100) -> None:
        super().__init__()
        self.save_every = save_every
        self.snapshot_every = snapshot_every
        self._saved_at = 0.0
        self._written: set[int] = set()
        self._fingerprints: dict[int, str] = {}
        self._bar: Any = None

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Notes which images are there already."""
        assert isinstance(pl_module, InvertedImages)
        self._fingerprints = finished_images(Path(trainer.default_root_dir))
        pl_module.finished = set(self._fingerprints)

    def on_predict_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Refuses to mix images of different settings in one directory."""
        assert isinstance(pl_module, InvertedImages)
        expected = pl_module.fingerprints(pl_module.prepare(batch))
        for index, fingerprint in zip(batch["index"].tolist(), expected, strict=True):
            path = image_path(Path(trainer.default_root_dir), index)
            found = self._fingerprints.get(index, fingerprint)
            if found == fingerprint and (state := _state_path(trainer, index)).is_file():
                # A search is named by the first of its images.
                path, found = state, _read_state(state)["fingerprints"][0]
            if found != fingerprint:
                raise InputError(
                    f"{path} was made with other settings or inputs; choose another "
                    "trainer.default_root_dir, or delete the old one"
                )

    def on_search_start(
        self, trainer: L.Trainer, pl_module: GeneratedImages, search: ImageSearch, batch: Batch
    ) -> None:
        """Continues the search that a killed run left."""
        self._written = set()
        self._saved_at = time.monotonic()
        path = _state_path(trainer, int(batch["index"][0]))
        if path.is_file():
            saved = _read_state(path)
            if saved["fingerprints"] == pl_module.fingerprints(batch):
                search.load_state_dict(saved["search"])
                pl_module.print(f"continues after iteration {search.iteration}")
        progress: Any = trainer.progress_bar_callback
        if progress is not None and progress.is_enabled:
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=search.settings.iterations,
                initial=search.iteration,
                desc=f"{len(batch['index'])} images",
                leave=False,
                dynamic_ncols=True,
            )

    def on_search_step(
        self, trainer: L.Trainer, pl_module: GeneratedImages, search: ImageSearch, batch: Batch
    ) -> None:
        """Shows progress, writes what is finished, saves the state from time to time."""
        judged = search.iteration % search.settings.judge_every == 0 or search.done
        if self._bar is not None:
            self._bar.update()
            if judged:
                values = " ".join(f"{value:.2f}" for value in search.similarity.tolist())
                self._bar.set_postfix_str(f"similarity {values}")
        if judged:
            self._log(trainer, search, batch)
        if search.done and self._bar is not None:
            self._bar.close()
            self._bar = None
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if judged:
            self._write_finished(trainer, pl_module, search, batch)
        path = _state_path(trainer, int(batch["index"][0]))
        if search.done:
            path.unlink(missing_ok=True)
        elif trainer.received_sigterm or time.monotonic() - self._saved_at >= self.save_every:
            state = {"fingerprints": pl_module.fingerprints(batch), "search": search.state_dict()}
            write_checkpoint(path, state)
            self._saved_at = time.monotonic()

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes what belongs to all images, if they are all there."""
        assert isinstance(pl_module, InvertedImages)
        trainer.strategy.barrier()
        if not writes_results(trainer):
            return
        root = Path(trainer.default_root_dir)
        total = _total(trainer, pl_module)
        merged = merge_images(root, total, provenance(trainer, seed=pl_module.seed))
        if merged is None:
            there = len(finished_images(root))
            pl_module.print(f"{there} of {total} images are in {root / 'images'}")
            return
        facts = {n: merged[n].tolist() for n in ("label", "score", "similarity") if n in merged}
        rows = [
            dict(zip(facts, values, strict=True)) for values in zip(*facts.values(), strict=True)
        ]
        write_json(root / "inversions.json", [{"index": i, **row} for i, row in enumerate(rows)])
        _write_grid(root, merged["images"])
        words = f"{total} images are in {root}"
        if "similarity" in merged:
            low, middle, high = (
                merged["similarity"].quantile(torch.tensor([0.0, 0.5, 1.0])).tolist()
            )
            words += f"; similarity to their targets {low:.2f} to {high:.2f}, median {middle:.2f}"
        pl_module.print(words)

    def _write_finished(
        self, trainer: L.Trainer, pl_module: GeneratedImages, search: ImageSearch, batch: Batch
    ) -> None:
        left = set() if search.done else set(search.members)
        for at in sorted(set(range(len(batch["index"]))) - left - self._written):
            history = torch.stack([row[at] for row in search.history])
            found = {
                "image": search.images[at],
                "similarity": search.similarity[at],
                "history": history[~history.isnan()],
            }
            iterations = int(search.stopped_at[at]) or search.iteration
            self._write(trainer, pl_module, batch, at, found, iterations=iterations)
            self._written.add(at)

    def on_predict_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401 - as the base class
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Writes images that were not searched for, but made at once."""
        assert isinstance(pl_module, InvertedImages)
        trial = trainer.fast_dev_run  # type: ignore[attr-defined]
        if not (trial or isinstance(pl_module, GeneratedImages)):
            for at in range(len(outputs["index"])):
                found = {"image": outputs["images"][at]}
                self._write(trainer, pl_module, outputs, at, found)

    def _write(
        self,
        trainer: L.Trainer,
        pl_module: InvertedImages,
        batch: Batch,
        at: int,
        found: dict[str, Tensor],
        **facts: object,
    ) -> None:
        index = int(batch["index"][at])
        tensors = {name: value.float() for name, value in found.items()}
        tensors |= {name: batch[name][at] for name in CARRIED if name in batch}
        prepared = {n: v for n, v in batch.items() if n not in ("images", "similarity")}
        fingerprint = pl_module.fingerprints(prepared)[at]
        metadata = provenance(
            trainer, seed=pl_module.seed, index=index, fingerprint=fingerprint, **facts
        )
        path = image_path(Path(trainer.default_root_dir), index)
        _write_png(path.with_suffix(".png"), tensors["image"])
        # Last: it is what tells that the image is finished.
        write_tensors(path, INVERSION, tensors, metadata)

    def _log(self, trainer: L.Trainer, search: ImageSearch, batch: Batch) -> None:
        snapshot = search.iteration % self.snapshot_every == 0 or search.done
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger):
                continue
            for at, index in enumerate(batch["index"].tolist()):
                value, step = float(search.similarity[at]), search.iteration
                logger.experiment.add_scalar(f"similarity/{index:05d}", value, step)
                if snapshot:
                    image = search.images[at].float()
                    logger.experiment.add_image(f"best_so_far/{index:05d}", image, step)


def _state_path(trainer: L.Trainer, first: int) -> Path:
    # Named by the batch's first image, as several processes may search in one directory.
    return Path(trainer.default_root_dir) / f"search_{first:05d}.ckpt"


def _read_state(path: Path) -> dict[str, Any]:
    """The state of a search.

    Raises:
        InputError: It is none.
    """
    made_by = "delete it to start these images afresh"
    saved = read_checkpoint(path, what="state of an inversion", made_by=made_by)
    if not isinstance(saved.get("fingerprints"), list) or not saved["fingerprints"]:
        raise InputError(f"{path} is no state of an inversion; {made_by}")
    return saved


def _total(trainer: L.Trainer, pl_module: InvertedImages) -> int:
    """How many images all shares make together."""
    source: Any = getattr(trainer, "datamodule", None) or pl_module
    return int(source.total)


def _write_png(path: Path, image: Tensor) -> None:
    from torchvision.utils import save_image

    with atomic_path(path) as temporary:
        save_image(image, temporary)


def _write_grid(root: Path, images: Tensor) -> None:
    from torchvision.utils import save_image

    with atomic_path(root / "inversions.png") as temporary:
        save_image(images, temporary, nrow=min(len(images), 10))
