"""Pictures in a report."""

import torch
from scipy import stats

from reporting.inversion_section import inversion_section
from reporting.page import Page, render


def test_a_page_with_45_pictures_is_below_10_megabytes() -> None:
    # Noise, which no format can compress.
    images = torch.rand(45, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    similarity = torch.linspace(0.5, 1, 45)
    tensors = {
        "images": images,
        "original_images": images.flip(2),
        "train_images": images.flip(3),
        "target_similarity": similarity,
        "attacked_similarity": similarity,
        "original_attacked_similarity": similarity,
    }
    rows = [
        {"train_image": f"{i}.jpg", "target_similarity": value, "attacked_similarity": value}
        for i, value in enumerate(similarity.tolist())
    ]
    metrics = {
        "mean": {"target_similarity": 0.75, "attacked_similarity": 0.75},
        "images": rows,
        "num_train": 100,
    }
    section = inversion_section(metrics, tensors)
    low, high = stats.t.interval(0.95, 44, loc=0.75, scale=stats.sem(similarity.double()))
    expected = f"similarity to the training image 0.750 ± {(high - low) / 2:.3f} in the attacked"
    assert expected in section.headline
    assert "second" not in section.headline
    page = render(Page(title="A report", sections=[section]))
    assert "44.jpg" in page
    assert 10**6 < len(page.encode()) < 10**7
