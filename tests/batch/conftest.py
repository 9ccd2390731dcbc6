from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from harmony import HarmonyEncoding
from tests.batch.scripted import ScriptedEngine, byte_encoding


@pytest.fixture(scope="session")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> HarmonyEncoding:
    return byte_encoding(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture
def engine(encoding: HarmonyEncoding) -> ScriptedEngine:
    return ScriptedEngine(encoding)


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[[Iterable[Any]], Path]:
    """Writes an input file: bytes as they are, anything else as JSON."""

    def write(lines: Iterable[Any], name: str = "in.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(
            b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines)
        )
        return path

    return write


@pytest.fixture
def read_rows() -> Callable[[Path], dict[int, dict[str, Any]]]:
    """Reads an output file by input line; a line that is answered twice fails."""

    def read(path: Path) -> dict[int, dict[str, Any]]:
        data = path.read_bytes()
        assert data == b"" or data.endswith(b"\n")
        rows = [json.loads(line) for line in data.splitlines()]
        by_line = {row["line"]: row for row in rows}
        assert len(by_line) == len(rows), "a line was answered twice"
        return by_line

    return read
