"""What watches or writes: artifacts, evaluation results, figures."""

from callbacks.attackability_writer import AttackabilityWriter
from callbacks.candidate_writer import CandidateWriter
from callbacks.draw_hyperparameters import DrawHyperparameters
from callbacks.inversion_evaluation_writer import InversionEvaluationWriter
from callbacks.inversion_writer import InversionWriter
from callbacks.last_checkpoint import LastCheckpoint
from callbacks.recovery_writer import RecoveryWriter
from callbacks.representative_writer import RepresentativeWriter

__all__ = [
    "AttackabilityWriter",
    "CandidateWriter",
    "DrawHyperparameters",
    "InversionEvaluationWriter",
    "InversionWriter",
    "LastCheckpoint",
    "RecoveryWriter",
    "RepresentativeWriter",
]
