"""Resemblance is judged against all true images, in a centred space."""

import torch
from torch.nn import functional as F

from attacks.image_loss import class_loss, embedding_loss
from attacks.image_quality import resemblance


def test_own_image_against_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    # A common direction that would make any two embeddings alike.
    truth = torch.randn(30, 20, generator=generator) + 10
    own = torch.tensor([3, 7, 7])
    images = truth[own].clone()
    images[1] += 0.5 * torch.randn(20, generator=generator)
    images[2] = truth[8]
    found = resemblance(images, truth, own)
    assert float(found.similarity[0]) > 0.999
    assert 0.5 < float(found.similarity[1]) < 0.999
    assert found.rank.tolist()[:2] == [1, 1]
    assert int(found.rank[2]) > 1
    assert float(found.others.abs().max()) < 0.1
    assert float(F.cosine_similarity(truth[:1], truth[1:2])) > 0.9


def test_losses_against_torch() -> None:
    embeddings, targets = torch.randn(4, 6), torch.randn(4, 6)
    loss, similarity = embedding_loss(embeddings, targets, "mse")
    torch.testing.assert_close(loss.mean(), F.mse_loss(embeddings, targets))
    loss, again = embedding_loss(embeddings, 10 * targets, "cosine")
    torch.testing.assert_close(similarity, again)
    torch.testing.assert_close(loss, 1 - similarity)
    labels = torch.tensor([1, -1, 1, -1])
    logits = torch.randn(4, 1)
    loss, probability = class_loss(logits, labels)
    expected = F.binary_cross_entropy_with_logits(
        logits.squeeze(1), (labels > 0).float(), reduction="none"
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(probability, (-expected).exp())
    logits = torch.randn(4, 3)
    loss, probability = class_loss(logits, torch.tensor([0, 1, 2, 0]))
    torch.testing.assert_close(probability, logits.softmax(1)[range(4), [0, 1, 2, 0]])
