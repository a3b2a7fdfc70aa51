"""What watches or writes: artifacts, evaluation results, figures."""

from callbacks.attackability_writer import AttackabilityWriter
from callbacks.candidate_writer import CandidateWriter
from callbacks.draw_hyperparameters import DrawHyperparameters
from callbacks.encoder_writer import EncoderWriter
from callbacks.last_checkpoint import LastCheckpoint
from callbacks.mae_pictures import MAEPictures
from callbacks.recovery_writer import RecoveryWriter
from callbacks.representative_writer import RepresentativeWriter
from callbacks.step_checkpoint import StepCheckpoint

__all__ = [
    "AttackabilityWriter",
    "CandidateWriter",
    "DrawHyperparameters",
    "EncoderWriter",
    "LastCheckpoint",
    "MAEPictures",
    "RecoveryWriter",
    "RepresentativeWriter",
    "StepCheckpoint",
]
