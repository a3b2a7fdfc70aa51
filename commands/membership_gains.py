"""What each step beyond the paper's attack gains, on the same targets and images."""

from pathlib import Path
from typing import Any

from artifacts.errors import InputError
from artifacts.membership_metrics import read_membership_metrics, require_equal_sizes
from artifacts.tensors import MEMBERSHIP_SCORES
from commands.membership_section import CAVEATS, THREAT_MODEL
from commands.stages import finished_files
from reporting.page import Section, Table, table_lines
from reporting.sweep import estimate

_METRICS = {"auc": "AUC", "asr": "ASR"}
# Of the stages of configs/quickstart/membership.yaml and membership_gains.yaml.
_ATTACK, _INDEPENDENT = "attack_seed", "independent_masks_seed"
# One change each: what is changed, and stage and attack without and with it.
_STEPS = (
    ("many masks in place of one", (_ATTACK, "paper"), (_ATTACK, "many_masks")),
    ("complementary masks", (_INDEPENDENT, "many_masks"), (_ATTACK, "many_masks")),
    ("masked patches only", (_ATTACK, "all_patches"), (_ATTACK, "many_masks")),
    ("decoder of the pool, matched threshold", (_ATTACK, "many_masks"), (_ATTACK, "matched")),
    ("relative to the population", (_ATTACK, "matched"), (_ATTACK, "population")),
    ("calibration by the shadows' errors", (_ATTACK, "population"), (_ATTACK, "calibrated")),
    ("likelihood ratio", (_ATTACK, "calibrated"), (_ATTACK, "likelihood_ratio")),
    ("learned combination", (_ATTACK, "calibrated"), (_ATTACK, "combined")),
    ("the default, over baseline D", (_ATTACK, "baseline_d"), (_ATTACK, "combined")),
    ("the default, over the paper's", (_ATTACK, "paper"), (_ATTACK, "combined")),
)


def gains_section(run: str) -> Section:
    """AUC and ASR without and with each step, and the mean difference over seeds.

    Args:
        run: The directory of the pipelines ``membership.yaml`` and ``membership_gains.yaml``.

    Raises:
        InputError: No seed is finished, or its attacks are not all there or of other sizes.
    """
    names = [path.parent.name for path in finished_files(run, f"{_ATTACK}*/metrics.json")]
    seeds = [name.removeprefix(_ATTACK) for name in names]
    if not seeds:
        raise InputError(
            f"{run} has no finished {_ATTACK}* stage; "
            "`python main.py pipeline --config configs/quickstart/membership.yaml` makes one"
        )
    finished = set(finished_files(run, f"{_INDEPENDENT}*/metrics.json"))
    paths = {
        stage: [Path(run) / f"{stage}{seed}" / "metrics.json" for seed in seeds]
        for stage in (_ATTACK, _INDEPENDENT)
    }
    for path in paths[_INDEPENDENT]:
        if path not in finished:
            raise InputError(
                f"no metrics file of a finished stage at {path}; the pipeline "
                "configs/quickstart/membership_gains.yaml makes those of independent masks"
            )
    contents = {
        path: read_membership_metrics(path, _METRICS) for both in paths.values() for path in both
    }
    require_equal_sizes(contents)
    found = {stage: [contents[path] for path in paths[stage]] for stage in paths}
    rows = [[title, *_cells(found, without, with_it)] for title, without, with_it in _STEPS]
    table = Table(
        f"What each step gains, seeds {', '.join(seeds)}",
        ["step", *(f"{title}{what}" for title in _METRICS.values() for what in ("", " gain"))],
        rows,
        "Without → with. ± is half of the 95% interval of the mean "
        "gain over seeds (Student's t), which a single seed has not.",
    )
    return Section(
        title="Was an image in the encoder's pre-training set? What each step gains",
        threat_model=THREAT_MODEL,
        headline=f"{len(seeds)} targets, attacked without and with each step",
        tables=[table],
        caveats=CAVEATS,
        lines=table_lines(table),
    )


def _cells(
    found: dict[str, list[Any]], without: tuple[str, str], with_it: tuple[str, str]
) -> list[str]:
    """Both means and the mean gain of a step, by metric."""
    cells = []
    for metric in _METRICS:
        try:
            before, after = (
                [float(metrics["attacks"][name][metric]) for metrics in found[stage]]
                for stage, name in (without, with_it)
            )
        except KeyError as error:
            raise InputError(
                f"a finished stage lacks {error}; {MEMBERSHIP_SCORES.made_by}"
            ) from error
        gain = estimate([b - a for a, b in zip(before, after, strict=True)])
        spread = f" ± {gain.half_width:.3f}" if gain.count > 1 else ""
        cells += [
            f"{estimate(before).mean:.3f} → {estimate(after).mean:.3f}",
            f"{gain.mean:+.3f}{spread}",
        ]
    return cells
