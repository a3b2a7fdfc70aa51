"""One LightningModule per training."""

from lightning_modules.activation_maximisation import ActivationMaximisation
from lightning_modules.cluster_count_evaluation import ClusterCountEvaluation
from lightning_modules.kkt_reconstruction import KKTReconstruction
from lightning_modules.probe_mlp import ProbeMLP
from lightning_modules.reconstruction_evaluation import ReconstructionEvaluation
from lightning_modules.representative_selection import RepresentativeSelection

__all__ = [
    "ActivationMaximisation",
    "ClusterCountEvaluation",
    "KKTReconstruction",
    "ProbeMLP",
    "ReconstructionEvaluation",
    "RepresentativeSelection",
]
