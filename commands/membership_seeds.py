"""Membership attacks over several seeds: what does not depend on one lucky target."""

from collections.abc import Sequence
from typing import Any

from artifacts.errors import InputError
from artifacts.membership_metrics import read_membership_metrics, require_equal_sizes
from commands.membership_section import CAVEATS, THREAT_MODEL
from commands.stages import finished_files
from reporting.membership import COLUMNS, LABELS, ordered
from reporting.page import Section, Table, table_lines
from reporting.sweep import estimate

_METRICS = ("asr", "auc", "asr_best_threshold")


def seeds_section(run: str) -> Section:
    """Mean and interval of every attack over the seeds of a pipeline.

    Args:
        run: The pipeline's directory; its ``attack_seed*`` stages are read.

    Raises:
        InputError: Fewer than two seeds are finished, or they cannot be averaged.
    """
    paths = finished_files(run, "attack_seed*/metrics.json")
    if len(paths) < 2:
        raise InputError(
            f"{run} has {len(paths)} finished attack_seed* stages; a mean needs two or more"
        )
    found = {path: read_membership_metrics(path, _METRICS) for path in paths}
    require_equal_sizes(found)
    names = [path.parent.name.removeprefix("attack_seed") for path in paths]
    table = _table(list(found.values()), names)
    return Section(
        title="Was an image in the encoder's pre-training set? The mean over seeds",
        threat_model=THREAT_MODEL,
        headline=f"{len(paths)} targets, each with other images and shadows",
        tables=[table],
        caveats=CAVEATS,
        lines=table_lines(table),
    )


def _table(all_metrics: Sequence[dict[str, Any]], seeds: Sequence[str]) -> Table:
    common = set.intersection(*(set(metrics["attacks"]) for metrics in all_metrics))
    rows = []
    for name in ordered(dict.fromkeys(common)):
        cells = [LABELS.get(name, name)]
        for metric in _METRICS:
            values = [metrics["attacks"][name][metric] for metrics in all_metrics]
            over_seeds = estimate(values)
            each = " ".join(f"{value:.2f}" for value in values)
            cells.append(f"{over_seeds.mean:.3f} ± {over_seeds.half_width:.3f} ({each})")
        rows.append(cells)
    first = all_metrics[0]
    return Table(
        f"Membership attacks over seeds {', '.join(seeds)}",
        ["attack", *(COLUMNS[metric] for metric in _METRICS)],
        rows,
        f"{first['num_members']} members and {first['num_non_members']} non-members of each "
        "target; mean ± half of its 95% interval over seeds (Student's t), each seed in brackets.",
    )
