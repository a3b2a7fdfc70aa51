"""Command lines that miss nothing but a file, for the stages beyond the quickstart."""

from tests.conftest import REPOSITORY

_PHOTOS = f"--config={REPOSITORY}/configs/photos"
_TRANSFER = f"--config={REPOSITORY}/configs/transfer_reconstruction"
_QUICK = f"--config={REPOSITORY}/configs/quickstart"
_SMALL = ["--model.backbone=timm/test_vit.r160_in1k", "--model.image_size=32"]
_EMBED = [
    *("--data.images.root={photos}", "--data.images.image_size=32", "--data.num_train=4"),
    *("--data.backbone=timm/test_vit.r160_in1k", "--data.cache_dir={root}/cache"),
]
_INVERT = [*("predict", f"{_PHOTOS}/invert.yaml"), *_SMALL]
_JUDGE = [
    *("test", f"{_PHOTOS}/evaluate_inversions.yaml", f"{_PHOTOS}/data.yaml", *_EMBED),
    *("--model.backbone=timm/test_vit.r160_in1k", "--data.weights={vit}"),
]
_TRUE = ["predict", f"{_PHOTOS}/true_embeddings.yaml", "--data=datamodules.DigitsDataModule"]
_UNCLIP = [
    *("predict", f"--config={REPOSITORY}/configs/inversions/clip_unclip.yaml"),
    "--data.representatives={representatives}",
]
_MAXIMISE = [*("predict", f"{_PHOTOS}/image_activation_maximisation.yaml"), *_SMALL]
_CLUSTERS = ["test", f"{_TRANSFER}/cluster_count.yaml", "--data.num_train=20"]
_MEMBERSHIP = f"{_QUICK}/membership_data.yaml"
_ATTACK = ["test", _MEMBERSHIP, f"{_QUICK}/membership_attack.yaml"]
_DECODER = ["fit", _MEMBERSHIP, f"{_QUICK}/membership_decoder.yaml"]

STRANGER_OPTIONS: dict[str, list[str]] = {
    "DIPInversion.probe": [
        *(*_INVERT, "--model.probe={file}", "--model.weights={vit}"),
        "--data.representatives={representatives}",
    ],
    "DIPInversion.weights": [
        *(*_INVERT, "--model.weights={file}", "--model.probe={probe}"),
        "--data.representatives={representatives}",
    ],
    "RepresentativesDataModule.representatives": [
        *(*_INVERT, "--model.weights={vit}", "--model.probe={probe}"),
        "--data.representatives={file}",
    ],
    "ImageActivationMaximisation.probe": [
        *_MAXIMISE,
        "--model.probe={file}",
        "--model.weights={vit}",
    ],
    "ImageActivationMaximisation.weights": [
        *(*_MAXIMISE, "--model.probe={probe}", "--model.weights={file}"),
    ],
    "EmbeddingsDataModule.weights": [
        *("fit", f"{_TRANSFER}/probe_binary.yaml", f"{_PHOTOS}/data.yaml", *_EMBED),
        "--data.weights={file}",
    ],
    "ImageDataModule.split": [
        *("fit", f"{_TRANSFER}/probe_binary.yaml", f"{_PHOTOS}/data.yaml", *_EMBED),
        *("--data.weights={vit}", "--data.images.split={file}"),
    ],
    "InversionEvaluation.inversions": [
        *_JUDGE,
        "--model.weights={vit}",
        "--model.inversions={file}",
    ],
    "InversionEvaluation.probe": [
        *(*_JUDGE, "--model.inversions={inversions}", "--model.weights={vit}"),
        "--model.probe={file}",
    ],
    "InversionEvaluation.weights": [
        *(*_JUDGE, "--model.inversions={inversions}", "--model.weights={file}"),
        "--model.probe=null",
    ],
    "TrueEmbeddings.probe": [*_TRUE, "--model.probe={file}"],
    "TrueEmbeddings.representatives": [
        *(*_TRUE, "--model.what=nearest_training", "--model.representatives={file}"),
    ],
    "UnCLIPInversion.model": [*_UNCLIP, "--model.model={file}", "--model.probe={probe}"],
    "UnCLIPInversion.probe": [*_UNCLIP, "--model.model={unclip}", "--model.probe={file}"],
    "ClusterCountEvaluation.probe": [
        *(*_CLUSTERS, "--model.probe={file}", "--model.candidates={candidates}"),
    ],
    "ClusterCountEvaluation.candidates": [
        *(*_CLUSTERS, "--model.probe={probe}", "--model.candidates={file}"),
    ],
    "EncoderClassification.encoder": ["fit", f"{_QUICK}/mae_probe.yaml", "--model.encoder={file}"],
    "MAEPretraining.attacked": ["fit", f"{_QUICK}/mae.yaml", "--model.attacked={file}"],
    "MAEPretraining.weights": ["fit", f"{_QUICK}/mae.yaml", "--model.weights={file}"],
    "ShadowDecoder.encoder": [*_DECODER, "--model.encoder={file}"],
    "ShadowDecoder.decoder": [*_DECODER, "--model.encoder={encoder}", "--model.decoder={file}"],
    "MembershipInference.target": [*_ATTACK, "--model.target={file}"],
    "MembershipSplits.splits": [*_DECODER, "--model.encoder={encoder}", "--data.splits={file}"],
    "report.inversions": ["report", "--inversions={file}", "--metrics={file}"],
    "report.numbers": ["report", "--numbers={file}"],
}
# Read by the code of an option above, in the same place.
SAME_AS_ANOTHER = {
    "InversionEvaluation.original_inversions",
    "InversionEvaluation.second_weights",
    "MembershipInference.simulated",
    "MembershipInference.true_target",
    "UnCLIPInversion.public_embeddings",
}
# Names of models, devices, tables and folders.
NAMES = {
    *("DIPInversion.backbone", "ImageActivationMaximisation.backbone"),
    *("InversionEvaluation.backbone", "InversionEvaluation.second_backbone"),
    *("EmbeddingsDataModule.backbone", "EmbeddingsDataModule.cache_dir"),
    *("EmbeddingsDataModule.device", "ImageFolderDataModule.name", "MAEPretraining.size"),
    *("MembershipSplits.part", "report.run", "report.table", "report.figure"),
}
