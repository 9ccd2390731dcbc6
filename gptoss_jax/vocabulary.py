"""Which vocabulary a checkpoint speaks."""

from __future__ import annotations

from checkpoints import Checkpoint, CheckpointError
from harmony import HarmonyEncoding, HarmonyEncodingName, load_encoding, load_harmony_encoding


def load_encoding_for(checkpoint: Checkpoint) -> HarmonyEncoding:
    """The encoding of a checkpoint: its own ``vocabulary.tiktoken``, or else the packaged o200k_harmony.

    Raises:
        CheckpointError: the model has too few rows for the vocabulary.
    """
    own = checkpoint.vocabulary
    encoding = load_encoding(own) if own else load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    needed = max(encoding.stop_tokens()) + 1
    rows = checkpoint.config.vocabulary_size
    if needed > rows:
        name = own.name if own else "o200k_harmony (it brings no vocabulary of its own)"
        raise CheckpointError(f"{checkpoint.path} has {rows} vocabulary rows: {name} needs at least {needed}")
    return encoding
