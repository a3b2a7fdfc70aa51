"""One LightningModule per training."""

from lightning_modules.activation_maximisation import ActivationMaximisation
from lightning_modules.cluster_count_evaluation import ClusterCountEvaluation
from lightning_modules.dip_inversion import DIPInversion
from lightning_modules.encoder_classification import EncoderClassification
from lightning_modules.image_activation_maximisation import ImageActivationMaximisation
from lightning_modules.inversion_evaluation import InversionEvaluation
from lightning_modules.kkt_reconstruction import KKTReconstruction
from lightning_modules.mae_pretraining import MAEPretraining
from lightning_modules.membership_inference import MembershipInference
from lightning_modules.probe_mlp import ProbeMLP
from lightning_modules.reconstruction_evaluation import ReconstructionEvaluation
from lightning_modules.representative_selection import RepresentativeSelection
from lightning_modules.shadow_decoder import ShadowDecoder
from lightning_modules.true_embeddings import TrueEmbeddings
from lightning_modules.unclip_inversion import UnCLIPInversion

__all__ = [
    "ActivationMaximisation",
    "ClusterCountEvaluation",
    "DIPInversion",
    "EncoderClassification",
    "ImageActivationMaximisation",
    "InversionEvaluation",
    "KKTReconstruction",
    "MAEPretraining",
    "MembershipInference",
    "ProbeMLP",
    "ReconstructionEvaluation",
    "RepresentativeSelection",
    "ShadowDecoder",
    "TrueEmbeddings",
    "UnCLIPInversion",
]
