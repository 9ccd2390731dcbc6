from __future__ import annotations

import pytest

from checkpoints.opening import TINY, VOCABULARY_NAME
from harmony import HarmonyEncoding, load_encoding


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    """The embedded model's own encoding."""
    return load_encoding(TINY / VOCABULARY_NAME)
