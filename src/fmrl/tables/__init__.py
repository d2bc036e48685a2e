"""Any table as tasks: data frames and files of every kind, encoded and grouped."""

from fmrl.tables.encoder import Encoder, Policy
from fmrl.tables.encoder_fit import fit_encoder
from fmrl.tables.frames import tasks_from_frame
from fmrl.tables.stream import TaskStream
from fmrl.tables.training_ids import training_ids

__all__ = ["Encoder", "Policy", "TaskStream", "fit_encoder", "tasks_from_frame", "training_ids"]
