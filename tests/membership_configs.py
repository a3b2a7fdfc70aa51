"""Which shipped configs are about membership inference: ``test_membership_configs`` runs them."""

QUICKSTART = ("", "_data", "_mae", "_decoder", "_attack", "_fashion", "_fashion_data", "_gains")
DATASETS = ("cifar10", "cifar100", "tiny_imagenet", "fashion_mnist", "digits")
EXPERIMENTS = ("table2", "table3", "table4", "table5", "table6", "fig4", "fig5")
OTHERS = ("attack", "audit", "audit_data", "decoder", "defence_none", "trajectory", "verdicts")
MEMBERSHIP_CONFIGS = {
    *(f"quickstart/membership{name}.yaml" for name in QUICKSTART),
    *(f"mim_membership/splits_{name}.yaml" for name in DATASETS),
    *(f"mim_membership/shadow_{name}.yaml" for name in DATASETS),
    *(f"mim_membership/{name}.yaml" for name in EXPERIMENTS),
    *(f"mim_membership/{name}.yaml" for name in OTHERS),
    "scale/audit_small.yaml",
}
