"""The tables of Membership Inference Attack Against Masked Image Modeling, as printed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PaperTable:
    """A table, and where the same numbers of a run here are.

    Attributes:
        title: Number and caption.
        row: What rows differ in; the name of it in ``stage``.
        column: What columns differ in; likewise, or ``attack`` for one column an attack.
        stage: Name of the stage with the numbers of a cell, with ``{row}`` and ``{column}`` in the
            place of keys.
        rows: Heading of each row by key.
        columns: Heading of each column by key.
        values: The printed numbers by (row key, column key); the paper gives some in figures only.
        metric: What is compared: ``asr``, or ``threshold``.
    """

    title: str
    row: str
    column: str
    stage: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    values: Mapping[tuple[str, str], float]
    metric: str = "asr"


DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "TinyImageNet"}
# Data that stand for the paper's.
STAND_INS = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
ENCODERS = {"encoder_i": "Encoder-I", "encoder_ii": "Encoder-II", "encoder_iii": "Encoder-III"}
RATIOS = ("0.1", "0.25", "0.5", "0.75", "0.9")


def _grid(
    rows: Sequence[str], columns: Sequence[str], numbers: str
) -> dict[tuple[str, str], float]:
    """Numbers of a table, row by row."""
    values = [float(number) for number in numbers.split()]
    keys = [(row, column) for row in rows for column in columns]
    return dict(zip(keys, values, strict=True))


_ATTACKS = ("baseline_a", "baseline_b", "baseline_c", "baseline_d", "paper")
_BY_ENCODER = {
    f"{dataset}_{encoder}": f"{DATASETS[dataset]}, {ENCODERS[encoder]}"
    for dataset in DATASETS
    for encoder in ENCODERS
}

TABLES = {
    "table2": PaperTable(
        "Table 2: attack success rate of the baselines and the paper's attack",
        "dataset_encoder",
        "attack",
        "table2_{row}",
        _BY_ENCODER,
        {
            **{f"baseline_{letter}": f"Baseline-{letter.upper()}" for letter in "abcd"},
            "paper": "the paper's attack",
        },
        _grid(
            list(_BY_ENCODER),
            _ATTACKS,
            """0.5026 0.5589 0.4975 0.5058 0.7267
               0.5068 0.6500 0.5030 0.5147 0.8200
               0.5041 0.7155 0.4987 0.5103 0.8868
               0.5777 0.5549 0.5002 0.5063 0.6961
               0.4993 0.6631 0.4973 0.5146 0.7922
               0.5049 0.6848 0.5003 0.5106 0.8323
               0.5051 0.5835 0.4968 0.5019 0.6806
               0.5019 0.7467 0.5010 0.5121 0.7997
               0.5017 0.8263 0.4974 0.5144 0.8343""",
        ),
    ),
    "table3": PaperTable(
        "Table 3: the impact of the mask ratio",
        "mask ratio",
        "dataset",
        "table3_{column}_{row}",
        {ratio: ratio for ratio in RATIOS},
        DATASETS,
        _grid(
            RATIOS,
            list(DATASETS),
            """0.5230 0.5300 0.7432
               0.5290 0.5440 0.7227
               0.6146 0.5940 0.7110
               0.7267 0.6936 0.6905
               0.7637 0.7588 0.7207""",
        ),
    ),
    "table4": PaperTable(
        # Stages count epochs from 0.
        "Table 4: the impact of pre-training epochs",
        "epochs",
        "dataset",
        "table4_{column}_{row}",
        {"99": "100", "199": "200", "299": "300", "399": "400", "499": "500"},
        DATASETS,
        _grid(
            ("99", "199", "299", "399", "499"),
            list(DATASETS),
            """0.5205 0.5285 0.5510
               0.5620 0.5650 0.5970
               0.6311 0.6036 0.6431
               0.6756 0.6516 0.6831
               0.7272 0.6931 0.6903""",
        ),
    ),
    "table5": PaperTable(
        "Table 5: layers of the shadow's decoder; the paper's targets have 8",
        "layers",
        "encoder",
        "table5_{column}_{row}",
        {"4": "4", "6": "6", "own": "the target's own", "10": "10", "12": "12"},
        ENCODERS,
        _grid(
            ("4", "6", "own", "10", "12"),
            list(ENCODERS),
            """0.6866 0.7822 0.8338
               0.7002 0.7887 0.8080
               0.7267 0.8200 0.8868
               0.7027 0.8003 0.7587
               0.7052 0.8293 0.7677""",
        ),
    ),
    "table6": PaperTable(
        "Table 6: defences on CIFAR-10",
        "encoder",
        "defence",
        "table6_{row}_{column}",
        ENCODERS,
        {"none": "none", "weight_decay": "L2", "dropout": "dropout"},
        _grid(
            list(ENCODERS),
            ("none", "weight_decay", "dropout"),
            """0.7267 0.7127 0.6432
               0.8200 0.8130 0.7287
               0.8868 0.8820 0.7558""",
        ),
    ),
    "table7": PaperTable(
        "Table 7: the threshold",
        "dataset",
        "encoder",
        "table2_{row}_{column}",
        DATASETS,
        ENCODERS,
        _grid(
            list(DATASETS),
            list(ENCODERS),
            "0.0022 0.0017 0.0009 0.0028 0.0019 0.0009 0.0088 0.0068 0.0042",
        ),
        metric="threshold",
    ),
    "fig4": PaperTable(
        "Fig. 4: another distribution of the shadow's data",
        "shadow",
        "target",
        "fig4_{column}_{row}",
        DATASETS,
        DATASETS,
        {},
    ),
    "fig5": PaperTable(
        "Fig. 5: another mask ratio of the shadow",
        "shadow's ratio",
        "target's ratio",
        "fig5_{column}_{row}",
        {ratio: ratio for ratio in RATIOS},
        {ratio: ratio for ratio in RATIOS},
        {},
    ),
}
