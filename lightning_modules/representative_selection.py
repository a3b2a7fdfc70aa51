"""Choice of the candidates worth inverting, without the training set."""

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from artifacts.errors import InputError
from attacks.centres import RepresentativeName
from attacks.draw_trust import agreement
from attacks.label_trees import Cut
from attacks.rankings import RankingName
from attacks.representatives import select_representatives
from lightning_modules.progress import announced
from lightning_modules.sharding import require_one_process

# Runs that recovered something were well below the one and above the other.
FAILED_RESIDUAL = 0.9
FAILED_AGREEMENT = 0.02


class RepresentativeSelection(L.LightningModule):
    """Clusters the candidates of each label and represents the best clusters.

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, section 5:
    candidates that resemble a training sample gather in clusters, so clusters tell them apart
    without a training sample. Nothing is trained: ``predict`` is all there is.

    Args:
        top: Number of representatives; the paper inverts 45.
        representative: How a cluster is averaged; the paper takes the mean.
        ranking: What the clusters are ranked by; the paper takes their size.
        maxclust: Cut into at most this many clusters (the paper's 1,000), or
        height: cut at this mean cosine distance. One of the two.
        min_draws: Leave out clusters that fewer draws contribute to.
        draws: Use this many draws, those that other draws agree with most; by default all.

    Raises:
        InputError: A number makes no sense, or both or neither of ``maxclust`` and ``height``.
    """

    def __init__(
        self,
        top: int = 45,
        representative: RepresentativeName = "weighted",
        ranking: RankingName = "multiplier_mass",
        maxclust: int | None = None,
        height: float | None = 0.4,
        min_draws: int = 1,
        draws: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if min(top, min_draws, 1 if draws is None else draws) < 1:
            raise InputError("top, min_draws and draws must be at least 1")
        try:
            # A number of clusters stands for the default height.
            self.cut = Cut(maxclust, None if maxclust is not None else height)
        except ValueError as error:
            raise InputError(str(error)) from error
        self.top = top
        self.representative: RepresentativeName = representative
        self.ranking: RankingName = ranking
        self.min_draws = min_draws
        self.draws = draws

    def setup(self, stage: str) -> None:
        """Refuses to share the one batch.

        Raises:
            InputError: There are several processes.
        """
        require_one_process(self.trainer, "clustering needs all candidates")

    def forward(self, run: dict[str, Tensor]) -> dict[str, Tensor]:
        """Chooses among the candidates of a run.

        Args:
            run: ``candidates`` (R, m, D), ``multipliers`` (R, m), ``labels`` (m,), ``residual``
                (R,), as a reconstruction writes them.

        Returns:
            ``representatives`` (k, D), ``score`` (k,) in descending order, ``label`` (k,).

        Raises:
            InputError: No cluster has enough draws.
        """
        trust = agreement(run["candidates"], run["labels"])
        if float(run["residual"].min()) > FAILED_RESIDUAL or (
            len(trust) > 1 and float(trust.max()) < FAILED_AGREEMENT
        ):
            rank_zero_warn(
                f"the reconstruction looks failed: lowest relative KKT residual "
                f"{float(run['residual'].min()):.2f}, and other draws repeat at most "
                f"{100 * float(trust.max()):.0f}% of a draw; expect no training sample"
            )
        draws = trust.argsort(descending=True, stable=True)[: self.draws]
        candidates = run["candidates"][draws]
        num_draws, num_candidates, _ = candidates.shape
        chosen = select_representatives(
            candidates.flatten(0, 1),
            run["multipliers"][draws].flatten(),
            torch.arange(num_draws, device=candidates.device).repeat_interleave(num_candidates),
            run["labels"].repeat(num_draws),
            cut=self.cut,
            representative=self.representative,
            ranking=self.ranking,
            top=self.top,
            min_draws=self.min_draws,
            progress=announced("clustering"),
        )
        if len(chosen.score) == 0:
            raise InputError(
                f"no cluster has candidates of {self.min_draws} draws; lower model.min_draws "
                f"(the run has {num_draws} draws) or raise model.height"
            )
        return {
            "representatives": chosen.vectors,
            "score": chosen.score.float(),
            "label": chosen.label,
        }

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """The choice among the candidates of the one batch."""
        representatives: dict[str, Tensor] = self(batch)
        return representatives
