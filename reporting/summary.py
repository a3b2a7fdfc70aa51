"""The main result in words."""

from typing import Any


def summary_lines(metrics: dict[str, Any]) -> list[str]:
    """What an evaluation counted, a line for each set of vectors and threshold.

    Args:
        metrics: Content of ``metrics.json``.

    Returns:
        What all candidates recover, and what the attacker's own ranking keeps of it.
    """
    total = metrics["num_train"]
    lines = []
    for name, label in (("candidates", ""), ("representatives", "the attacker's own choice: ")):
        if name in metrics:
            for threshold, counts in metrics[name]["cosine"].items():
                held_out, random = counts["null_held_out"], counts["null_random"]
                lines.append(
                    f"{label}{counts['recovered']} of {total} training images recovered "
                    f"(cosine > {threshold}); null {max(held_out, random)} of {total} "
                    f"[held-out samples {held_out}, random directions {random}; "
                    f"{metrics[name]['count']} {name}]"
                )
    return lines
