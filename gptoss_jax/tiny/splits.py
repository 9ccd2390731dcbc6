"""What is trained on and what is held out. The content itself decides, so nothing can be in both."""

from __future__ import annotations

import enum
import hashlib

HELD_OUT_SHARE = 12
"""One in so many sums and calls is held out."""


class Split(enum.Enum):
    """The two disjoint halves of everything the generator can say."""

    TRAINING = "training"
    HELD_OUT = "held out"


def split_of(content: str) -> Split:
    """The split of a sum (`12+7`) or of a function call (name and JSON arguments), by hash."""
    digest = hashlib.sha256(content.encode()).digest()
    return Split.HELD_OUT if digest[0] * 256 + digest[1] < 65536 // HELD_OUT_SHARE else Split.TRAINING
