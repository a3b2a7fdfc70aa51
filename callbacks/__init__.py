"""What watches or writes: artifacts, evaluation results, figures."""

from callbacks.attackability_writer import AttackabilityWriter
from callbacks.candidate_writer import CandidateWriter
from callbacks.cluster_curve_writer import ClusterCurveWriter
from callbacks.draw_hyperparameters import DrawHyperparameters
from callbacks.encoder_writer import EncoderWriter
from callbacks.inversion_evaluation_writer import InversionEvaluationWriter
from callbacks.inversion_writer import InversionWriter
from callbacks.last_checkpoint import LastCheckpoint
from callbacks.mae_pictures import MAEPictures
from callbacks.membership_score_writer import MembershipScoreWriter
from callbacks.membership_writer import MembershipWriter
from callbacks.recovery_writer import RecoveryWriter
from callbacks.representative_writer import RepresentativeWriter
from callbacks.resolution_writer import ResolutionWriter
from callbacks.step_checkpoint import StepCheckpoint

__all__ = [
    "AttackabilityWriter",
    "CandidateWriter",
    "ClusterCurveWriter",
    "DrawHyperparameters",
    "EncoderWriter",
    "InversionEvaluationWriter",
    "InversionWriter",
    "LastCheckpoint",
    "MAEPictures",
    "MembershipScoreWriter",
    "MembershipWriter",
    "RecoveryWriter",
    "RepresentativeWriter",
    "ResolutionWriter",
    "StepCheckpoint",
]
