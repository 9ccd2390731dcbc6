"""Checkpoints that several tests read and none changes."""

import pytest

from checkpoints.random import write_random
from tests.checkpoints.small_model import SMALL


@pytest.fixture(scope="session")
def huggingface(tmp_path_factory):
    """The small random checkpoint of seed 3 in the Hugging Face layout, in several files."""
    folder = tmp_path_factory.mktemp("huggingface")
    write_random(folder, SMALL, 3, "huggingface", shard_bytes=100_000)
    return folder


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """The same weights in OpenAI's layout, in one file."""
    folder = tmp_path_factory.mktemp("model") / "original"
    write_random(folder, SMALL, 3, "original")
    return folder
