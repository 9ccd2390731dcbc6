"""Checkpoints on disk: the two published layouts of gpt-oss, the
converted layout, and the embedded tiny model.
"""

from checkpoints.config import CheckpointError, ModelConfig
from checkpoints.opening import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "CheckpointError", "ModelConfig", "open_checkpoint"]
