"""One LightningModule per training."""

from lightning_modules.activation_maximisation import ActivationMaximisation
from lightning_modules.encoder_classification import EncoderClassification
from lightning_modules.kkt_reconstruction import KKTReconstruction
from lightning_modules.mae_pretraining import MAEPretraining
from lightning_modules.membership_inference import MembershipInference
from lightning_modules.probe_mlp import ProbeMLP
from lightning_modules.reconstruction_evaluation import ReconstructionEvaluation
from lightning_modules.representative_selection import RepresentativeSelection
from lightning_modules.shadow_decoder import ShadowDecoder

__all__ = [
    "ActivationMaximisation",
    "EncoderClassification",
    "KKTReconstruction",
    "MAEPretraining",
    "MembershipInference",
    "ProbeMLP",
    "ReconstructionEvaluation",
    "RepresentativeSelection",
    "ShadowDecoder",
]
