from __future__ import annotations

from collections.abc import Callable

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.vocabulary import load_encoding_for
from harmony import HarmonyEncoding


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    return load_encoding_for(open_checkpoint("tiny"))


@pytest.fixture
def tokens_of(encoding: HarmonyEncoding) -> Callable[[str], list[int]]:
    """A completion's tokens from its text, special tokens spelled out."""
    return lambda text: encoding.encode(text, allowed_special="all")
