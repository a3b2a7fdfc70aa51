"""Average linkage against scipy, by both of its ways."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from attacks import mean_clusters
from attacks.clustering import MATRIX_BYTES, average_linkage
from attacks.linkage import Linkage

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "upgma.npz"

Data = Callable[[int, int, int], Tensor]

# With a matrix of distances, and with none.
WAYS = pytest.mark.parametrize("matrix_bytes", [MATRIX_BYTES, 0], ids=["matrix", "means"])


def normal(size: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, dim, generator=generator, dtype=torch.float64)


def mixture(size: int, dim: int, seed: int = 0) -> Tensor:
    """Clusters of about ten, more or less tight, with a common direction."""
    generator = torch.Generator().manual_seed(seed)
    centres = normal(max(1, size // 10), dim, seed + 1) + 0.5
    member = torch.randint(len(centres), (size,), generator=generator)
    spread = torch.rand(size, 1, generator=generator, dtype=torch.float64)
    return centres[member] + spread * normal(size, dim, seed + 2)


def swallowed(size: int, dim: int, seed: int = 0) -> Tensor:
    """One large cluster that swallows the others one by one."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(size, 1, generator=generator, dtype=torch.float64)
    return 2 * share * normal(1, dim, seed + 1) + normal(size, dim, seed + 2)


def of_scipy(vectors: Tensor) -> Linkage:
    tree: Linkage = hierarchy.linkage(vectors.double().numpy(), "average", "cosine")
    return tree


def assert_same_tree(tree: Linkage, expected: Linkage) -> None:
    assert np.abs(tree[:, 2] - expected[:, 2]).max() < 1e-8
    assert np.diff(expected[:, 2]).min() > 1e-12, "the data has ties: trees cannot be compared"
    np.testing.assert_array_equal(tree[:, :2], np.sort(expected[:, :2], axis=1))
    np.testing.assert_array_equal(tree[:, 3], expected[:, 3])


@WAYS
@pytest.mark.parametrize("data", [normal, mixture, swallowed])
@pytest.mark.parametrize(("size", "dim"), [(3, 5), (60, 3), (700, 48)])
def test_tree_is_scipys(data: Data, size: int, dim: int, matrix_bytes: int) -> None:
    vectors = data(size, dim, 0)
    tree = average_linkage(vectors, matrix_bytes=matrix_bytes)
    assert_same_tree(tree, of_scipy(vectors))
    for criterion, threshold in (("maxclust", 20), ("distance", 0.5)):
        flat = hierarchy.fcluster(tree, threshold, criterion)
        expected = hierarchy.fcluster(of_scipy(vectors), threshold, criterion)
        np.testing.assert_array_equal(flat, expected)


@WAYS
def test_tree_is_the_golden_one(matrix_bytes: int) -> None:
    if not GOLDEN.exists():
        pytest.skip(f"reference values are not at {GOLDEN}")
    golden = np.load(GOLDEN)
    tree = average_linkage(torch.from_numpy(golden["X"]), matrix_bytes=matrix_bytes)
    assert np.abs(tree[:, 2] - golden["heights"]).max() < 1e-8
    assert_same_tree(tree, golden["Z"])


@pytest.mark.parametrize("neighbours", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 7])
def test_tree_does_not_depend_on_batches_or_lists(
    neighbours: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mean_clusters, "NEIGHBOURS", neighbours)
    for name in ("LISTS", "SEARCHED", "LOOKED_UP"):
        monkeypatch.setattr(mean_clusters, name, batch)
    monkeypatch.setattr(mean_clusters, "SCORE_BYTES", 5000)
    monkeypatch.setitem(mean_clusters.GATHER_BYTES, "cpu", 200)
    for data in (normal, mixture, swallowed):
        vectors = data(90, 8)
        assert_same_tree(average_linkage(vectors, matrix_bytes=0), of_scipy(vectors))


@WAYS
@given(
    size=st.integers(2, 60),
    dim=st.integers(2, 12),
    seed=st.integers(0, 2**32),
    data=st.sampled_from([normal, mixture, swallowed]),
)
@settings(max_examples=30, deadline=None)
def test_tree_is_valid_and_does_not_depend_on_the_order(
    matrix_bytes: int, size: int, dim: int, seed: int, data: Data
) -> None:
    vectors = data(size, dim, seed)
    tree = average_linkage(vectors, matrix_bytes=matrix_bytes)
    assert hierarchy.is_valid_linkage(tree)
    assert hierarchy.is_monotonic(tree)

    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    permuted = average_linkage(vectors[order], matrix_bytes=matrix_bytes)
    # Random data has no ties, so which vectors merge at which distance is the same.
    joined = squareform(hierarchy.cophenet(tree))[order][:, order]
    assert np.abs(joined - squareform(hierarchy.cophenet(permuted))).max() < 1e-12


@WAYS
def test_norms_do_not_matter(matrix_bytes: int) -> None:
    vectors = mixture(80, 6)
    scale = torch.logspace(-250, 250, 80, dtype=torch.float64)[:, None]
    tree = average_linkage(vectors * scale, matrix_bytes=matrix_bytes)
    assert_same_tree(tree, of_scipy(vectors))


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_dtypes(dtype: torch.dtype, matrix_bytes: int) -> None:
    vectors = (20 * normal(40, 30)).to(dtype)
    tree = average_linkage(vectors, matrix_bytes=matrix_bytes)
    assert_same_tree(tree, of_scipy(vectors))


@WAYS
def test_one_and_two_vectors(matrix_bytes: int) -> None:
    assert average_linkage(torch.ones(1, 3), matrix_bytes=matrix_bytes).shape == (0, 4)
    tree = average_linkage(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), matrix_bytes=matrix_bytes)
    np.testing.assert_allclose(tree, [[0, 1, 1 - 0.5**0.5, 2]], atol=1e-12)


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_and_scaled_vectors_merge_first(dtype: torch.dtype, matrix_bytes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(30, (400,), generator=generator)
    # One direction occurs far more often than a list of neighbours is long.
    source[:200] = 0
    scale = torch.rand(400, 1, generator=generator, dtype=torch.float64) + 0.1
    vectors = (normal(30, 12)[source] * scale).to(dtype)
    tree = average_linkage(vectors, matrix_bytes=matrix_bytes)
    assert hierarchy.is_valid_linkage(tree)
    assert hierarchy.is_monotonic(tree)
    flat = hierarchy.fcluster(tree, 1e-9, "distance")
    _, expected = np.unique(source, return_inverse=True)
    assert len(np.unique(np.stack([flat, expected]), axis=1).T) == len(np.unique(flat)) == 30
    # Beyond that, the tree has no ties.
    reference = of_scipy(vectors)
    assert np.abs(tree[:, 2] - reference[:, 2]).max() < 1e-8
    for height in (0.3, 0.6, 0.9):
        ours = hierarchy.fcluster(tree, height, "distance")
        theirs = hierarchy.fcluster(reference, height, "distance")
        assert len(np.unique(np.stack([ours, theirs]), axis=1).T) == ours.max() == theirs.max()


@WAYS
@pytest.mark.parametrize("spread", [1e-7, 1e-6, 1e-5, 1e-3])
def test_crowds_closer_than_float32_can_tell(spread: float, matrix_bytes: int) -> None:
    vectors = torch.cat([normal(1, 16) + spread * normal(150, 16, 1), normal(50, 16, 2)])
    tree = average_linkage(vectors, matrix_bytes=matrix_bytes)
    assert np.abs(tree[:, 2] - of_scipy(vectors)[:, 2]).max() < 1e-8


@WAYS
def test_a_zero_vector_is_at_distance_one_from_everything(matrix_bytes: int) -> None:
    # All others are within distance 1 of each other, so zero vectors come last, each at 1.
    vectors = normal(40, 5).abs()
    vectors[[3, 17, 20]] = 0.0
    tree = average_linkage(vectors, matrix_bytes=matrix_bytes)
    assert hierarchy.is_valid_linkage(tree)
    rest = of_scipy(vectors[vectors.any(dim=1)])
    np.testing.assert_allclose(tree[:36, 2], rest[:, 2], atol=1e-8)
    np.testing.assert_array_equal(tree[36:, 2], 1.0)
    flat = hierarchy.fcluster(tree, 0.999999, "distance")
    assert sorted(np.bincount(flat)[1:]) == [1, 1, 1, 37]


@WAYS
@pytest.mark.parametrize(
    "vectors", [torch.zeros(50, 3), torch.eye(60), torch.ones(40, 2)], ids=["0", "basis", "equal"]
)
def test_nothing_but_ties(vectors: Tensor, matrix_bytes: int) -> None:
    tree = average_linkage(vectors, matrix_bytes=matrix_bytes)
    assert hierarchy.is_valid_linkage(tree)
    height = 0.0 if vectors.all() else 1.0
    np.testing.assert_allclose(tree[:, 2], height, atol=1e-12)


def assert_is_average_linkage(tree: Linkage, vectors: Tensor) -> None:
    """Replays the tree: each row must merge two of the clusters that are closest then."""
    size = len(vectors)
    unit = torch.nn.functional.normalize(vectors.double(), dim=1).numpy()
    distance = 1.0 - unit @ unit.T
    np.fill_diagonal(distance, np.inf)
    place, count = list(range(size)), np.ones(size)
    for first, second, height, _ in tree:
        one, two = place[int(first)], place[int(second)]
        assert abs(distance[one, two] - height) < 1e-8
        assert height < distance.min() + 1e-8
        share = count[one] / (count[one] + count[two])
        distance[one] = distance[:, one] = share * distance[one] + (1 - share) * distance[two]
        count[one] += count[two]
        distance[two] = distance[:, two] = np.inf
        place.append(one)


def signs() -> Tensor:
    return normal(200, 6).sign()


def zeros_among_opposites() -> Tensor:
    vectors = normal(60, 4)
    vectors[[7, 8, 50]] = 0.0
    return vectors


def zeros_among_signs() -> Tensor:
    return normal(150, 3).sign() * (normal(150, 1, seed=1) > 0)


@WAYS
@pytest.mark.parametrize("data", [signs, zeros_among_opposites, zeros_among_signs])
def test_tree_with_ties_is_one_of_those_possible(
    data: Callable[[], Tensor], matrix_bytes: int
) -> None:
    vectors = data()
    tree = average_linkage(vectors, matrix_bytes=matrix_bytes)
    assert hierarchy.is_valid_linkage(tree)
    assert hierarchy.is_monotonic(tree)
    assert_is_average_linkage(tree, vectors)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_vectors_that_are_not_finite(bad: float) -> None:
    vectors = normal(5, 3)
    vectors[2, 1] = bad
    with pytest.raises(ValueError, match="1 of 5 vectors are not finite") as caught:
        average_linkage(vectors)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (2, 2, 2)])
def test_what_is_not_a_matrix(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="non-empty matrix"):
        average_linkage(torch.ones(shape))


@WAYS
def test_progress_rises_to_its_end(matrix_bytes: int) -> None:
    steps: list[tuple[int, int]] = []
    average_linkage(
        normal(100, 4), lambda done, total: steps.append((done, total)), matrix_bytes=matrix_bytes
    )
    done = [step for step, _ in steps]
    assert {total for _, total in steps} == {199}
    assert done == sorted(done)
    assert done[-1] == 199


@WAYS
def test_input_stays_as_it_is(matrix_bytes: int) -> None:
    vectors = normal(30, 4).requires_grad_()
    before = vectors.detach().clone()
    average_linkage(vectors, matrix_bytes=matrix_bytes)
    torch.testing.assert_close(vectors.detach(), before, rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_low_precision_of_matrix_products_does_not_count(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    vectors = mixture(400, 48)
    try:
        torch.set_float32_matmul_precision(precision)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            tree = average_linkage(vectors.float(), matrix_bytes=0)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    assert_same_tree(tree, of_scipy(vectors.float()))
