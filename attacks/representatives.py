"""Good reconstructions among many candidates, chosen without the training data.

Candidates of different draws that resemble a training sample resemble each other, so they gather in
clusters, while failed ones scatter. Section 5 of the transfer-learning paper therefore clusters the
candidates, takes the largest clusters, and averages each to one representative. Here the cut of the
tree, the ranking of the clusters and the kind of average are each chosen by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.centres import REPRESENTATIVES, RepresentativeName
from attacks.label_trees import Cut, LabelTree, cut_trees, label_trees
from attacks.linkage import Progress
from attacks.rankings import RANKINGS, RankingName, draw_counts


@dataclass(frozen=True)
class Representatives:
    """The best clusters, in descending order of score.

    Attributes:
        vectors: A representative of each (k, D).
        score: What they were ranked by (k,), float64.
        label: Their labels (k,).
        members: Indices of each one's candidates, ascending: k tensors.
    """

    vectors: Tensor
    score: Tensor
    label: Tensor
    members: list[Tensor]


def select_representatives(
    candidates: Tensor,
    multipliers: Tensor,
    draw: Tensor,
    labels: Tensor,
    *,
    cut: Cut,
    representative: RepresentativeName,
    ranking: RankingName,
    top: int,
    min_draws: int = 1,
    trees: Sequence[LabelTree] | None = None,
    progress: Progress | None = None,
) -> Representatives:
    """Clusters the candidates of each label, ranks all clusters, and represents the best.

    Candidates of different labels never share a cluster. ``cut.maxclust`` counts the clusters of
    all labels together, as if different labels were too far apart to merge.

    Args:
        candidates: Reconstructed vectors of all draws (N, D), finite.
        multipliers: Multiplier λ of each (N,).
        draw: The draw that each comes from (N,), integer.
        labels: Label of each (N,).
        cut: Where to cut the trees.
        representative: Name of the average, see ``REPRESENTATIVES``.
        ranking: Name of the score, see ``RANKINGS``.
        top: How many clusters to return; fewer if there are fewer.
        min_draws: Clusters with candidates of fewer draws are left out.
        trees: What :func:`label_trees` gave for these candidates, if they are cut more than once.
        progress: See :func:`label_trees`.

    Returns:
        The best clusters; of equal ones first that of the smaller label, then that with the earlier
        candidate.

    Raises:
        ValueError: Lengths differ, a name is unknown, or candidates are not finite.
    """
    for name, values in (("multipliers", multipliers), ("draw", draw), ("labels", labels)):
        if values.shape != candidates.shape[:1]:
            raise ValueError(
                f"{name} must have shape ({len(candidates)},), not {tuple(values.shape)}"
            )
    if representative not in REPRESENTATIVES:
        raise ValueError(f"representative must be one of {', '.join(REPRESENTATIVES)}")
    if ranking not in RANKINGS:
        raise ValueError(f"ranking must be one of {', '.join(RANKINGS)}")
    device = candidates.device
    if trees is None:
        trees = label_trees(candidates, labels, progress)
    cluster, label = cut_trees(trees, cut)
    cluster = cluster.to(device)
    score = RANKINGS[ranking](candidates, multipliers.to(device), draw.to(device), cluster)
    owner, _ = draw_counts(draw.to(device), cluster)
    allowed = torch.nonzero(owner.bincount() >= min_draws)[:, 0]
    best = allowed[score[allowed].argsort(descending=True, stable=True)[:top]]
    members = [torch.nonzero(cluster == index)[:, 0] for index in best]
    average = REPRESENTATIVES[representative]
    vectors = [average(candidates[indices]) for indices in members]
    return Representatives(
        vectors=torch.stack(vectors) if vectors else candidates[:0],
        score=score[best],
        label=label.to(device)[best],
        members=members,
    )
