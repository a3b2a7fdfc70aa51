"""Figures of the reconstruction paper: how a table of runs is laid out as one, and beside what.

Reconstructing Training Data From Real-World Models Trained with Transfer Learning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ACCURACY = "test accuracy"
RECOVERED = "recovered > 0.75"
HELD_OUT = "held out > 0.75"
SAMPLES = "training samples"


@dataclass(frozen=True)
class PaperFigure:
    """A figure, and how a table of runs here is shown in its layout.

    Attributes:
        title: Number and subject.
        caption: What is compared.
        names: Heading by the name that rows of the table differ in, as ``wd``.
        statements: What the paper says to it, and what it gives as a picture only.
        chart: ``curves`` over the one name, a ``matrix`` of the second name by the first, ``bars``
            by row, or none.
        labels: What values of names are called, in the order of the rows.
        number: What a value of the names is a number of, if they are no words.
        printed: What the paper prints, by the row's values, then by column.
        marks: Where the paper has something to say along a curve, and what that is.
        logarithmic: Whether curves are over the logarithm of that number.
        columns: Columns that the table must have.
        caveats: What may not be concluded, beside what never may.
    """

    title: str
    caption: str
    names: Mapping[str, str]
    statements: Sequence[str]
    chart: Literal["curves", "matrix", "bars"] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    number: Callable[[float], float] | None = None
    printed: Mapping[tuple[str, ...], Mapping[str, str]] = field(default_factory=dict)
    marks: tuple[Sequence[float], str] = ((), "")
    logarithmic: bool = False
    columns: Sequence[str] = (ACCURACY, RECOVERED, HELD_OUT)
    caveats: Sequence[str] = ()


_DATASETS = {"food101_binary": "Food-101", "inaturalist_fauna_flora": "iNaturalist"}
_BACKBONES = {"vit": "ViT", "dino": "DINO", "dinov2": "DINOv2", "clip": "CLIP"}
_ABOVE = {ACCURACY: "> 0.95"}
_NO_COUNTS = "How many training images are recovered it shows in pictures only; it prints no count."

FIGURES = {
    "fig03": PaperFigure(
        title="Fig. 3: eight models",
        caption="Two binary tasks behind four backbones; the paper trains on 100 images of each.",
        names={"dataset": "data set", "backbone": "backbone"},
        statements=(
            "Seven of the eight models classify more than 95% of the test images rightly; DINO on "
            "Food-101 reaches 85% (section 4).",
            "Inversions are best behind DINO and ViT, and worse behind DINOv2 (section 4).",
            "The nearer a training image is to the decision boundary, the better it is recovered "
            "(Fig. 5).",
            _NO_COUNTS,
        ),
        chart="bars",
        labels={**_DATASETS, **_BACKBONES},
        printed={
            (dataset, backbone): _ABOVE if backbone != "dino" else {ACCURACY: accuracy}
            for dataset, accuracy in zip(_DATASETS, ("0.85", "> 0.95"), strict=True)
            for backbone in _BACKBONES
        },
    ),
    "fig04a": PaperFigure(
        title="Fig. 4a: ten dishes",
        caption="A model of ten classes behind DINO; the paper trains on ten images of each.",
        names={},
        statements=("The test accuracy is 84% (Fig. 4a).", _NO_COUNTS),
        printed={(): {ACCURACY: "0.84"}},
    ),
    "fig04b": PaperFigure(
        title="Fig. 4b: four groups of animals",
        caption="A model of four classes behind DINO; the paper trains on 25 images of each.",
        names={},
        statements=("The test accuracy is 96% (Fig. 4b).", _NO_COUNTS),
        printed={(): {ACCURACY: "0.96"}},
    ),
    "fig11": PaperFigure(
        title="Fig. 11: cosine similarity beside SSIM",
        caption="Where candidates are images, both measures can be taken of the same pair (A.2).",
        names={},
        statements=(
            "Above a cosine similarity of 0.75 the two measures go together, which is why the "
            "paper counts from there on; an SSIM above 0.4 stands for images that look alike.",
            "The bound of 0.75 misses some pairs whose SSIM is good.",
            "The pairs are a scatter plot of a CIFAR-10 model; no count is printed.",
        ),
        columns=(ACCURACY, RECOVERED, HELD_OUT, "SSIM > 0.4", "held out SSIM > 0.4"),
        caveats=(
            "Where as many held-out images have an SSIM above 0.4, SSIM tells nothing about "
            "recovery.",
        ),
    ),
    "fig12": PaperFigure(
        title="Fig. 12: is overtraining needed?",
        caption="Test accuracy and recovery along one training (A.3).",
        names={"epoch": "gradient steps"},
        statements=(
            "Recovery begins to rise after about 1,000 steps and to level off at about 2,000.",
            "Test accuracy, high from the start, gains more than 1.5 points until step 10,000.",
            "So a model need not be overtrained to be attacked. Both curves are a picture: DINO "
            "on Food-101, without numbers.",
        ),
        chart="curves",
        # An epoch of the config is 100 gradient steps; the first is number 0.
        number=lambda epoch: 100 * (epoch + 1),
        marks=((1000, 2000), "in the paper, recovery rises and levels off"),
        caveats=(
            "That nothing is recovered early shows what this attack needs, not that an early "
            "model is safe.",
        ),
    ),
    "fig13": PaperFigure(
        title="Fig. 13: training samples and width",
        caption="Probes D-W-1 on N training samples; the further left and up, the more parameters "
        "there are for each sample (A.4).",
        names={"n": "training samples", "width": "width"},
        statements=(
            "The more parameters there are for each training sample, the more is recovered.",
            "It works for up to 2,000 samples, the most that the paper tried.",
            "Each cell of the paper's picture is such a count with its share of N, on binary "
            "Food-101; its text repeats none.",
        ),
        chart="matrix",
        number=float,
        caveats=(
            "With more training samples also held-out ones come near a candidate by chance: "
            "compare each count with its own null.",
            "All cells share one number of candidates; more candidates may recover more where "
            "samples are many.",
        ),
    ),
    "fig14": PaperFigure(
        title="Fig. 14: [CLS] alone, and with the mean of the patches",
        caption="The same images, embedded by one token or by twice as many features (A.5).",
        names={"features": "features"},
        statements=(
            "The further features make no significant difference to what is recovered; the paper "
            "calls its own comparison far from exhaustive.",
            _NO_COUNTS,
        ),
        chart="bars",
        labels={"dino": "[CLS]", "dino_cls_mean": "[CLS] and mean"},
        caveats=("A difference within the intervals shows neither an effect nor that none is.",),
    ),
    "fig18": PaperFigure(
        title="Fig. 18: the attack beside activation maximisation",
        caption="Candidates from the stationarity equations, and inputs that the probe is sure of, "
        "counted in the same way (A.8).",
        names={"attack": "attack"},
        statements=(
            "Activation maximisation gives outputs that have to do with the classes, but is "
            "inferior to the attack.",
            "That is judged by pictures; the paper prints no count.",
        ),
        chart="bars",
        labels={"reconstruct": "reconstruction", "maximise": "activation maximisation"},
        caveats=("Another objective or start may make activation maximisation stronger.",),
    ),
    "fig28": PaperFigure(
        title="Fig. 28: weight decay",
        caption="Test accuracy by weight decay (B.6), and what it lets the attack recover.",
        names={"wd": "weight decay"},
        statements=(
            "For most values test accuracy rises until about 0.1, and falls from about 0.3 on.",
            "It takes models of 0.08 or 0.16, and recalls from earlier work that the attack does "
            "much worse without weight decay (section 6).",
            "The accuracies are a picture without numbers; recovery by weight decay is not shown.",
        ),
        chart="curves",
        number=float,
        marks=((0.08, 0.16), "weight decays of the paper's models"),
        logarithmic=True,
        caveats=(
            "No recovery without weight decay is a failure of this attack: another one may not "
            "need it.",
        ),
    ),
}
