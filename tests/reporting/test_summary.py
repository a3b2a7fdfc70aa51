"""The main line."""

from reporting.summary import summary_lines


def test_the_null_is_the_larger_of_the_two() -> None:
    counts = {"recovered": 30, "null_held_out": 2, "null_random": 5}
    metrics = {"num_train": 40, "candidates": {"count": 7, "cosine": {"0.75": counts}}}
    (line,) = summary_lines(metrics)
    assert line.startswith("30 of 40 training images recovered (cosine > 0.75); null 5 of 40")
    assert "held-out samples 2, random directions 5; 7 candidates" in line
