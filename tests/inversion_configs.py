"""Which shipped configs turn embeddings into images: ``test_inversion_configs`` runs them."""

STAGES = [
    "photos/invert.yaml",
    "photos/true_embeddings.yaml",
    "photos/evaluate_inversions.yaml",
    "transfer_reconstruction/inversion_paper.yaml",
    "transfer_reconstruction/fig19_image_activation_maximisation.yaml",
    "transfer_reconstruction/unclip.yaml",
]
PIPELINES = [
    "photos/pipeline_inversion.yaml",
    "transfer_reconstruction/fig09_inversion_scale.yaml",
    "transfer_reconstruction/fig15_clip_inversion.yaml",
]
INVERSION_CONFIGS = {*STAGES, *PIPELINES}
