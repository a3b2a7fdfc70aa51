"""Membership attacks over several seeds: what does not depend on one lucky target."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from artifacts.errors import InputError
from artifacts.files import read_json
from artifacts.tensors import MEMBERSHIP_SCORES
from commands.membership_report import CAVEATS, THREAT_MODEL
from commands.paper_tables import table_lines
from commands.run_facts import saved_configs, versions
from reporting.membership import COLUMNS, LABELS, ordered
from reporting.page import Page, Table

_METRICS = ("asr", "auc", "asr_best_threshold")


def seeds_page(run: str) -> tuple[Page, list[str]]:
    """Mean and interval of every attack over the seeds of a pipeline.

    Args:
        run: The pipeline's directory; its ``attack_seed*`` stages are read.

    Returns:
        The page, and the same as lines of text.

    Raises:
        InputError: Fewer than two seeds are finished.
    """
    paths = sorted(Path(run).glob("attack_seed*/metrics.json"))
    if len(paths) < 2:
        raise InputError(
            f"{run} has {len(paths)} finished attack_seed* stages; a mean needs two or more"
        )
    made_by = MEMBERSHIP_SCORES.made_by
    all_metrics = [read_json(path, what="metrics file", made_by=made_by) for path in paths]
    names = [path.parent.name.removeprefix("attack_seed") for path in paths]
    table = _table(all_metrics, names)
    page = Page(
        title="Was an image in the encoder's pre-training set? The mean over seeds",
        threat_model=THREAT_MODEL,
        headline=f"{len(paths)} targets, each with other images and shadows",
        tables=[table],
        caveats=CAVEATS,
        versions=versions(),
        configs=saved_configs(paths[0].parent),
    )
    return page, table_lines(table)


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval by Student's t over the seeds."""
    from scipy.stats import t

    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, float(t.ppf(0.975, len(values) - 1)) * math.sqrt(variance / len(values))


def _table(all_metrics: Sequence[dict[str, Any]], seeds: Sequence[str]) -> Table:
    common = set.intersection(*(set(metrics["attacks"]) for metrics in all_metrics))
    rows = []
    for name in ordered(dict.fromkeys(common)):
        cells = [LABELS.get(name, name)]
        for metric in _METRICS:
            values = [metrics["attacks"][name][metric] for metrics in all_metrics]
            mean, half = mean_and_half_width(values)
            each = " ".join(f"{value:.2f}" for value in values)
            cells.append(f"{mean:.3f} ± {half:.3f} ({each})")
        rows.append(cells)
    first = all_metrics[0]
    return Table(
        f"Membership attacks over seeds {', '.join(seeds)}",
        ["attack", *(COLUMNS[metric] for metric in _METRICS)],
        rows,
        f"{first['num_members']} members and {first['num_non_members']} non-members of each "
        "target; mean ± half of its 95% interval over seeds (Student's t), each seed in brackets.",
    )
