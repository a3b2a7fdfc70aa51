"""What a report says about reconstructions that differ in their seed only."""

from collections.abc import Mapping, Sequence
from typing import Any

from reporting.page import Section, Table
from reporting.reconstruction_section import CAVEATS, COUNTED, THREAT_MODEL
from reporting.sweep import estimate


def overview_section(groups: Mapping[str, Sequence[dict[str, Any]]]) -> Section:
    """The section about the means over seeds.

    Args:
        groups: Contents of the ``metrics.json`` of each experiment's runs, by its name; those with
            several runs come first.

    Raises:
        KeyError: The metrics are not those of an evaluation.
    """
    rows, lines = [], []
    for name, runs in groups.items():
        counted = [run["candidates"]["cosine"] for run in runs]
        for threshold in counted[0]:
            counts = [of_run[threshold] for of_run in counted]
            cells = [str(estimate([count[key] for count in counts])) for key in COUNTED]
            total = estimate([run["num_train"] for run in runs])
            rows.append([name, str(len(runs)), threshold, *cells, f"{total.mean:g}"])
            lines.append(
                f"{name}: {cells[0]} of {total.mean:g} training images recovered (cosine > "
                f"{threshold}), held-out samples {cells[1]}; mean of {len(runs)} runs"
            )
    note = "Mean over runs that differ in their seed only ± half of its 95% interval (Student's t)."
    header = ["experiment", "runs", "cosine above", "recovered", "held-out samples"]
    return Section(
        title="Training images recovered, over seeds",
        threat_model=THREAT_MODEL,
        headline=lines[0],
        tables=[Table("Means", [*header, "random directions", "training images"], rows, note)],
        caveats=CAVEATS,
        lines=lines,
    )
