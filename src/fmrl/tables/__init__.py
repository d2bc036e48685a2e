"""Any table as tasks: data frames and files of every kind, encoded and grouped."""

from fmrl.tables.encoder import Encoder, Policy, fit_encoder
from fmrl.tables.frames import infer_loss, tasks_from_frame, training_ids
from fmrl.tables.stream import TaskStream

__all__ = [
    "Encoder", "Policy", "TaskStream", "fit_encoder", "infer_loss", "tasks_from_frame",
    "training_ids",
]  # fmt: skip
