"""Which shipped configs are about masked autoencoders: ``test_mae_configs`` runs them."""

DATASETS = ("cifar10", "cifar100", "tiny_imagenet")
ENCODERS = ("encoder_i", "encoder_ii", "encoder_iii")
DEFENCES = ("defence_weight_decay", "defence_dropout")
MAE_CONFIGS = {
    "quickstart/mae.yaml",
    "quickstart/mae_probe.yaml",
    "backbones/mae.yaml",
    *(
        f"mim_membership/{name}.yaml"
        for name in ("pretraining", "linear_probe", "tiny", *DATASETS, *ENCODERS, *DEFENCES)
    ),
}
