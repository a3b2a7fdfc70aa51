"""Cutting trees, averaging clusters and ranking them."""

import inspect
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from attacks.centres import (
    REPRESENTATIVES,
    RepresentativeName,
    frechet_mean,
    mean,
    nearest_to_mean,
    trimmed_mean,
    weighted_mean,
)
from attacks.clustering import average_linkage
from attacks.label_trees import Cut, cut_tree, label_trees
from attacks.rankings import (
    RANKINGS,
    RankingName,
    effective_draws,
    multiplier_mass,
    neff_tightness,
    size,
)
from attacks.representatives import Representatives, select_representatives


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def cosine(first: Tensor, second: Tensor) -> float:
    return float(F.cosine_similarity(first.double(), second.double(), dim=0))


def same_partition(first: Tensor, second: np.ndarray[tuple[int], np.dtype[np.int32]]) -> bool:
    pairs = {(int(a), int(b)) for a, b in zip(first, second, strict=True)}
    return len(pairs) == len(torch.unique(first)) == len(np.unique(second))


class TestCut:
    """Flat clusters of a tree."""

    @pytest.mark.parametrize("maxclust", [1, 2, 7, 59, 60, 1000])
    def test_by_number_is_scipys(self, maxclust: int) -> None:
        tree = average_linkage(normal(60, 4))
        flat = cut_tree(tree, maxclust=maxclust)
        assert same_partition(flat, hierarchy.fcluster(tree, maxclust, "maxclust"))
        assert len(torch.unique(flat)) == min(maxclust, 60)

    @pytest.mark.parametrize("height", [0.0, 0.1, 0.5, 2.0])
    def test_by_height_is_scipys(self, height: float) -> None:
        tree = average_linkage(normal(60, 4))
        flat = cut_tree(tree, height=height)
        assert same_partition(flat, hierarchy.fcluster(tree, height, "distance"))

    def test_numbers_follow_the_vectors(self) -> None:
        flat = cut_tree(average_linkage(normal(60, 4)), maxclust=9)
        first = [int((flat == index).nonzero()[0]) for index in range(9)]
        assert all(before < after for before, after in pairwise(first))

    @pytest.mark.parametrize("cut", [{"maxclust": 1}, {"maxclust": 5}, {"height": 0.5}])
    def test_of_a_single_vector(self, cut: dict[str, int]) -> None:
        assert cut_tree(average_linkage(torch.ones(1, 3)), **cut).tolist() == [0]

    def test_needs_exactly_one(self) -> None:
        tree = average_linkage(normal(5, 3))
        with pytest.raises(ValueError, match="either maxclust or height"):
            cut_tree(tree)
        with pytest.raises(ValueError, match="either maxclust or height"):
            Cut(maxclust=3, height=0.5)
        with pytest.raises(ValueError, match="at least 1"):
            Cut(maxclust=0)


class TestRepresentatives:
    """One vector for a cluster."""

    def test_mean_is_of_the_candidates_themselves(self) -> None:
        vectors = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
        torch.testing.assert_close(mean(vectors), torch.tensor([2.0, 1.0]))

    def test_nearest_is_the_candidate_of_largest_cosine(self) -> None:
        vectors = normal(20, 5) + 1
        found = nearest_to_mean(vectors)
        cosines = [cosine(vector, vectors.mean(dim=0)) for vector in vectors]
        assert found.tolist() == vectors[int(np.argmax(cosines))].tolist()

    @pytest.mark.parametrize("spread", [1e-6, 0.1, 0.5, 1.0])
    @pytest.mark.parametrize("dim", [3, 10])
    def test_frechet_mean_minimises_squared_angles(self, dim: int, spread: float) -> None:
        vectors = normal(1, dim, seed=1) + spread * normal(25, dim)
        unit = F.normalize(vectors, dim=1).numpy()

        def squared_angles(centre: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
            # The angle between unit vectors from their distance, precise for small ones too.
            chord = np.linalg.norm(unit - centre / np.linalg.norm(centre), axis=1)
            return float(np.sum((2 * np.arcsin(np.clip(chord / 2, 0, 1)) / spread) ** 2))

        found = frechet_mean(vectors)
        best = minimize(squared_angles, unit.mean(axis=0), method="BFGS", tol=1e-12)
        assert squared_angles(found.numpy()) <= best.fun * (1 + 1e-9)
        assert cosine(found, torch.from_numpy(best.x)) > 1 - 1e-8
        assert float(found.norm()) == pytest.approx(float(vectors.norm(dim=1).mean()))

    def test_frechet_mean_of_two_halves_the_arc(self) -> None:
        vectors = torch.tensor([[1.0, 0.0, 0.0], [-0.6, 0.8, 0.0]], dtype=torch.float64)
        found = frechet_mean(vectors)
        assert cosine(found, vectors[0]) == pytest.approx(cosine(found, vectors[1]))
        torch.testing.assert_close(found, F.normalize(vectors.sum(dim=0), dim=0))

    def test_frechet_mean_is_not_the_mean_of_unit_vectors(self) -> None:
        angle = torch.tensor([0.0, 0.0, 1.5], dtype=torch.float64)
        found = frechet_mean(torch.stack([angle.cos(), angle.sin()], dim=1))
        # On a circle it is the mean angle.
        assert float(torch.atan2(found[1], found[0])) == pytest.approx(0.5)

    @pytest.mark.parametrize(
        ("representative", "least"), [(weighted_mean, 0.99), (trimmed_mean, 0.985)]
    )
    @pytest.mark.parametrize("foreign", ["scattered", "alike"])
    def test_foreign_members_hardly_matter(
        self, foreign: str, representative: Callable[[Tensor], Tensor], least: float
    ) -> None:
        truth = normal(200, seed=1)
        vectors = truth + 0.5 * normal(40, 200)
        strays = normal(12, 200, seed=2)
        if foreign == "alike":
            strays = 0.3 * truth + normal(200, seed=3) + 0.5 * strays
        vectors[:12] = strays
        assert cosine(representative(vectors), truth) > least
        assert cosine(representative(vectors), truth) > cosine(frechet_mean(vectors), truth) + 0.003

    def test_trimmed_mean_keeps_half(self) -> None:
        vectors = torch.tensor([[1.0, 0.0], [3.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 1.0]])
        # Of five, three are kept; the mean direction is nearest to (1, 0.1) and then (1, 0).
        unit = F.normalize(vectors[:3], dim=1).mean(dim=0)
        found = trimmed_mean(vectors)
        assert cosine(found, unit) == pytest.approx(1)
        assert float(found.norm()) == pytest.approx(float(vectors[:3].norm(dim=1).mean()))

    def test_trimmed_mean_of_two_keeps_both(self) -> None:
        vectors = F.normalize(normal(2, 9), dim=1)
        assert cosine(trimmed_mean(vectors), vectors.mean(dim=0)) == pytest.approx(1)

    def test_weighted_mean_fits_its_weights(self) -> None:
        vectors = normal(30, 6) + 1
        unit = F.normalize(vectors, dim=1)
        found = F.normalize(weighted_mean(vectors), dim=0)
        weights = (unit @ found).clamp_min(0) ** 2
        assert cosine(found, weights @ unit) == pytest.approx(1, abs=1e-12)

    @pytest.mark.parametrize("name", REPRESENTATIVES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_equal_candidates_is_the_candidate(self, name: str, dtype: torch.dtype) -> None:
        vector = normal(7).to(dtype)
        found = REPRESENTATIVES[name](vector.repeat(5, 1))
        assert found.dtype == dtype
        torch.testing.assert_close(found, vector)
        torch.testing.assert_close(REPRESENTATIVES[name](vector[None]), vector)

    @pytest.mark.parametrize("name", REPRESENTATIVES)
    def test_degenerate_clusters_give_finite_vectors(self, name: str) -> None:
        vector = normal(1, 7)
        for cluster in (torch.zeros(3, 7), torch.cat([vector, -vector]), vector.repeat(2, 1) * 0):
            assert REPRESENTATIVES[name](cluster).isfinite().all()

    @pytest.mark.parametrize("name", ["nearest", "frechet", "trimmed", "weighted"])
    @given(seed=st.integers(0, 2**32), count=st.integers(1, 12))
    @settings(max_examples=15, deadline=None)
    def test_turns_with_the_candidates(self, name: str, seed: int, count: int) -> None:
        vectors = normal(count, 5, seed=seed) + 1
        turn = torch.linalg.qr(normal(5, 5, seed=seed + 1))[0]
        before, after = REPRESENTATIVES[name](vectors), REPRESENTATIVES[name](vectors @ turn)
        torch.testing.assert_close(before @ turn, after, rtol=1e-6, atol=1e-6)


class TestRankings:
    """Scores of clusters."""

    candidates = normal(8, 3)
    multipliers = normal(8, seed=1).abs()
    draw = torch.tensor([0, 0, 1, 2, 5, 5, 5, 6])
    cluster = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])

    def test_size(self) -> None:
        found = size(self.candidates, self.multipliers, self.draw, self.cluster)
        assert found.tolist() == [4, 3, 1]

    def test_effective_draws(self) -> None:
        found = effective_draws(self.draw, self.cluster)
        assert found.tolist() == pytest.approx([16 / 6, 1, 1])

    def test_effective_draws_discount_strays(self) -> None:
        draw = torch.tensor([0] * 97 + [1, 2, 3])
        assert float(effective_draws(draw, torch.zeros_like(draw))) == pytest.approx(1.06, abs=0.01)

    def test_neff_tightness(self) -> None:
        found = neff_tightness(self.candidates, self.multipliers, self.draw, self.cluster)
        for index, effective in ((0, 16 / 6), (1, 1.0)):
            unit = F.normalize(self.candidates[self.cluster == index], dim=1)
            pairs = (unit @ unit.T)[~torch.eye(len(unit), dtype=torch.bool)]
            expected = effective * float(pairs.mean().clamp_min(0)) ** 2
            assert float(found[index]) == pytest.approx(expected, abs=1e-12)
        assert found[2] == 0

    def test_neff_tightness_of_opposites_is_zero(self) -> None:
        candidates = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        index = torch.arange(2)
        assert neff_tightness(candidates, candidates[:, 0], index, index * 0).tolist() == [0]

    def test_multiplier_mass_does_not_change_with_the_scale_gauge(self) -> None:
        found = multiplier_mass(self.candidates, self.multipliers, self.draw, self.cluster)
        mass = self.multipliers * self.candidates.norm(dim=1)
        expected = [float(mass[self.cluster == index].sum()) for index in range(3)]
        assert found.tolist() == pytest.approx(expected)
        scale = torch.logspace(-3, 3, 8, dtype=torch.float64)
        scaled = multiplier_mass(
            self.candidates * scale[:, None], self.multipliers / scale, self.draw, self.cluster
        )
        torch.testing.assert_close(scaled, found)


class Attack:
    """Candidates of six draws around twelve truths, with as many that are noise."""

    def __init__(self) -> None:
        self.truth = normal(12, 64, seed=5)
        self.truth_label = torch.tensor([-1.0, 1.0]).repeat(6)
        source = torch.arange(12).repeat(6)
        good = self.truth[source] + 0.4 * normal(72, 64, seed=6)
        self.candidates = torch.cat([good, normal(72, 64, seed=7)])
        self.labels = torch.cat([self.truth_label[source], torch.tensor([-1.0, 1.0]).repeat(36)])
        self.draw = torch.arange(6).repeat_interleave(12).repeat(2)
        self.multipliers = torch.cat([torch.ones(72), 0.1 * torch.ones(72)]).double()

    def select(
        self,
        cut: Cut,
        ranking: RankingName = "size",
        representative: RepresentativeName = "mean",
        top: int = 12,
        min_draws: int = 1,
    ) -> Representatives:
        return select_representatives(
            self.candidates,
            self.multipliers,
            self.draw,
            self.labels,
            cut=cut,
            representative=representative,
            ranking=ranking,
            top=top,
            min_draws=min_draws,
        )


@pytest.fixture(scope="module")
def attack() -> Attack:
    return Attack()


class TestSelection:
    """The whole way from candidates to representatives."""

    @pytest.mark.parametrize("ranking", ["size", "neff_tightness", "multiplier_mass"])
    @pytest.mark.parametrize(
        "representative", ["mean", "nearest", "frechet", "trimmed", "weighted"]
    )
    def test_finds_every_truth(
        self, attack: Attack, ranking: RankingName, representative: RepresentativeName
    ) -> None:
        found = attack.select(Cut(height=0.4), ranking, representative)
        assert found.vectors.shape == (12, 64)
        similarity = F.normalize(found.vectors, dim=1) @ F.normalize(attack.truth, dim=1).T
        best, which = similarity.max(dim=1)
        assert float(best.min()) > 0.85
        assert sorted(which.tolist()) == list(range(12))
        assert found.label.tolist() == attack.truth_label[which].tolist()

    @pytest.mark.parametrize("ranking", RANKINGS)
    def test_is_sorted_and_consistent(self, attack: Attack, ranking: RankingName) -> None:
        found = attack.select(Cut(maxclust=60), ranking, top=1000)
        assert len(found.vectors) == len(found.score) == len(found.members) == 60
        assert (found.score.diff() <= 0).all()
        assert sorted(torch.cat(found.members).tolist()) == list(range(144))
        for vector, label, members in zip(found.vectors, found.label, found.members, strict=True):
            torch.testing.assert_close(vector, attack.candidates[members].mean(dim=0))
            assert (attack.labels[members] == label).all()

    def test_equal_scores_are_in_a_fixed_order(self, attack: Attack) -> None:
        found = attack.select(Cut(maxclust=144), top=144)
        assert torch.unique(found.score).tolist() == [1]
        order = [(float(x), int(m)) for x, m in zip(found.label, found.members, strict=True)]
        assert order == sorted(order)

    def test_maxclust_counts_all_labels_together(self, attack: Attack) -> None:
        for maxclust in (2, 3, 10, 143, 144, 500):
            found = attack.select(Cut(maxclust=maxclust), top=1000)
            assert len(found.vectors) == min(maxclust, 144)
        # Labels never merge, whatever is asked for.
        assert len(attack.select(Cut(maxclust=1)).vectors) == 2

    def test_with_one_label_it_is_the_plain_tree(self, attack: Attack) -> None:
        labels = torch.zeros_like(attack.labels)
        found = select_representatives(
            attack.candidates,
            attack.multipliers,
            attack.draw,
            labels,
            cut=Cut(maxclust=20),
            representative="mean",
            ranking="size",
            top=20,
        )
        flat = cut_tree(average_linkage(attack.candidates), maxclust=20)
        assert sorted(map(len, found.members)) == sorted(flat.bincount().tolist())

    def test_clusters_of_few_draws_can_be_left_out(self, attack: Attack) -> None:
        found = attack.select(Cut(maxclust=60), top=1000, min_draws=3)
        draws = [len(torch.unique(attack.draw[members])) for members in found.members]
        assert len(draws) > 0
        assert min(draws) >= 3
        nothing = attack.select(Cut(maxclust=60), min_draws=7)
        assert nothing.vectors.shape == (0, 64)
        assert nothing.members == []

    def test_one_tree_serves_every_cut(self, attack: Attack) -> None:
        steps: list[tuple[int, int]] = []
        trees = label_trees(
            attack.candidates, attack.labels, lambda done, total: steps.append((done, total))
        )
        assert steps[-1] == (286, 286)
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        for maxclust in (5, 50):
            found = select_representatives(
                attack.candidates,
                attack.multipliers,
                attack.draw,
                attack.labels,
                cut=Cut(maxclust=maxclust),
                representative="mean",
                ranking="size",
                top=5,
                trees=trees,
            )
            expected = attack.select(Cut(maxclust=maxclust), top=5)
            torch.testing.assert_close(found.vectors, expected.vectors, rtol=0, atol=0)

    def test_float32_and_a_single_candidate_of_a_label(self) -> None:
        found = select_representatives(
            normal(4, 3).float(),
            torch.ones(4),
            torch.arange(4),
            torch.tensor([2, 0, 0, 0]),
            cut=Cut(maxclust=2),
            representative="weighted",
            ranking="multiplier_mass",
            top=5,
        )
        assert found.vectors.dtype == torch.float32
        assert sorted(found.label.tolist()) == [0, 2]

    def test_names_and_shapes_are_checked(self, attack: Attack) -> None:
        with pytest.raises(ValueError, match="representative must be one of mean, nearest"):
            attack.select(Cut(maxclust=5), representative="median")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="ranking must be one of size"):
            attack.select(Cut(maxclust=5), ranking="luck")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"draw must have shape \(144,\), not \(143,\)"):
            select_representatives(
                attack.candidates,
                attack.multipliers,
                attack.draw[1:],
                attack.labels,
                cut=Cut(maxclust=5),
                representative="mean",
                ranking="size",
                top=5,
            )

    def test_takes_no_training_data(self) -> None:
        # What an attacker has: candidates with their multipliers, draws and labels.
        names = set(inspect.signature(select_representatives).parameters)
        choices = {"cut", "representative", "ranking", "top", "min_draws", "trees", "progress"}
        assert names - choices == {"candidates", "multipliers", "draw", "labels"}
