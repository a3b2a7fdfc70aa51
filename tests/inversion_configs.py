"""Which shipped configs turn embeddings into images: ``test_inversion_configs`` runs them."""

STAGES = [
    "photos/invert.yaml",
    "photos/true_embeddings.yaml",
    "photos/evaluate_inversions.yaml",
    "photos/image_activation_maximisation.yaml",
    "transfer_reconstruction/inversion_paper.yaml",
    "transfer_reconstruction/image_activation_maximisation.yaml",
    "inversions/clip_unclip.yaml",
]
# Parts of pipelines.
PARTS = [
    "inversions/clip_dip.yaml",
    "inversions/dino.yaml",
    "inversions/dinov2.yaml",
    "inversions/judge.yaml",
    "inversions/vit.yaml",
    "scale/four_pictures.yaml",
    "scale/two_targets.yaml",
    "transfer_reconstruction/scale_targets.yaml",
]
PHOTO_PIPELINE = "photos/pipeline_inversion.yaml"
FIGURES = [
    "transfer_reconstruction/fig08_inversions.yaml",
    "transfer_reconstruction/fig09_inversion_scale.yaml",
    "transfer_reconstruction/fig15_clip_inversion.yaml",
    "transfer_reconstruction/fig19_image_activation_maximisation.yaml",
]
INVERSION_CONFIGS = {*STAGES, *PARTS, PHOTO_PIPELINE, *FIGURES}
