"""Similarity measures against scikit-learn and scipy."""

import numpy as np
import torch
from scipy.ndimage import uniform_filter
from sklearn.metrics.pairwise import cosine_similarity

from attacks.recovery import Matches, measure_recovery, rescaled
from attacks.similarity import nearest_by_cosine, ssim


def test_nearest_agrees_with_scikit_learn_whatever_the_chunk() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    vectors = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    table = cosine_similarity(queries.numpy(), vectors.numpy())
    for chunk in (1, 7, 100):
        similarity, index = nearest_by_cosine(queries, vectors, chunk)
        np.testing.assert_allclose(similarity.numpy(), table.max(1), rtol=1e-12)
        np.testing.assert_array_equal(index.numpy(), table.argmax(1))


def test_zero_vectors_are_like_nothing() -> None:
    similarity, _ = nearest_by_cosine(torch.ones(1, 3), torch.zeros(2, 3))
    assert float(similarity) == 0


def test_ssim_follows_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 3, 1, 12, 12, generator=generator, dtype=torch.float64)

    def reference(a: np.ndarray, b: np.ndarray) -> float:
        mean = [uniform_filter(image, 7, mode="mirror") for image in (a, b)]
        variance = [
            uniform_filter(image**2, 7, mode="mirror") - m**2
            for image, m in zip((a, b), mean, strict=True)
        ]
        covariance = uniform_filter(a * b, 7, mode="mirror") - mean[0] * mean[1]
        c1, c2 = 0.01**2, 0.03**2
        value = (2 * mean[0] * mean[1] + c1) * (2 * covariance + c2)
        value /= (mean[0] ** 2 + mean[1] ** 2 + c1) * (variance[0] + variance[1] + c2)
        return float(value.mean())

    expected = [reference(a[0].numpy(), b[0].numpy()) for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(ssim(first, second).numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(ssim(first, first).numpy(), 1.0)
    assert bool(torch.isfinite(ssim(first[..., :8, :8], second[..., :8, :8])).all())


def test_recovery_counts_planted_samples_and_both_nulls() -> None:
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(20, 50, generator=generator)
    held_out = torch.randn(30, 50, generator=generator)
    # Twelve training samples at arbitrary scale, eight of them disturbed; three held-out samples.
    disturbed = train[4:12] + 0.5 * torch.randn(8, 50, generator=generator)
    vectors = torch.cat([5 * train[:4], disturbed, held_out[:3]])
    basis = torch.eye(50)
    recovery = measure_recovery(train, held_out, vectors, basis)
    chosen = torch.randperm(30, generator=torch.Generator().manual_seed(0))[:20]
    found_of_three = int((chosen < 3).sum())
    assert found_of_three > 0
    assert torch.equal(recovery.null_held_out.samples, held_out[chosen])
    counts = recovery.counts()
    assert counts["0.75"]["recovered"] == 12
    assert 4 <= counts["0.9"]["recovered"] < 12
    # The null takes 20 of the 30 held-out samples; with all 20 it would find all three.
    assert counts["0.75"]["null_held_out"] == found_of_three
    assert counts["0.75"]["null_random"] == 0
    torch.testing.assert_close(recovery.recovered.nearest[:4], 5 * train[:4])
    # In two dimensions a few random directions come near everything: the null is not zero.
    flat = measure_recovery(train[:, :2], held_out[:, :2], vectors[:, :2], torch.eye(2))
    assert flat.counts()["0.75"]["null_random"] > 15


def test_rescaled_vectors_have_the_norm_of_standardised_data() -> None:
    vectors = torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert rescaled(vectors).tolist() == [
        [1.2000000476837158, 1.600000023841858, 0, 0],
        [0, 0, 0, 0],
    ]


def test_closest_pairs_and_ratios_of_norms() -> None:
    samples = torch.eye(4, dtype=torch.float64) * torch.tensor([1.0, 2.0, 4.0, 0.0])
    vectors = torch.tensor([[3.0, 0, 0, 0], [1.0, 1, 0, 0], [0, 0.1, 1.0, 0]]).double()
    matches = Matches.find(samples, vectors)
    assert matches.closest().tolist() == [0, 2, 1, 3]
    assert matches.closest(2).tolist() == [0, 2]
    expected = [3 / 1, 2**0.5 / 2, 1.01**0.5 / 4]
    np.testing.assert_allclose(matches.norm_ratio()[:3].numpy(), expected)
