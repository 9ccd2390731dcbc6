from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harmony import HarmonyEncoding, load_harmony_encoding, vocabulary


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    return load_harmony_encoding()


@pytest.fixture(scope="session")
def vocabulary_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `o200k_base.tiktoken`, written out of the package."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "o200k_base.tiktoken").write_bytes(vocabulary.to_tiktoken(vocabulary.o200k_base()))
    return folder


@pytest.fixture(scope="session")
def known(vocabulary_folder: Path) -> ModuleType:
    """openai-harmony, reading the package's vocabulary."""
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(vocabulary_folder)
    return pytest.importorskip("openai_harmony")


@pytest.fixture(scope="session")
def known_encoding(known: ModuleType) -> Any:
    return known.load_harmony_encoding("HarmonyGptOss")
