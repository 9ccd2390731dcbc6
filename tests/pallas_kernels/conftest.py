"""What holds for every test of a kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def races_fail(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """The simulator of TPU memories only prints the races that it finds."""
    yield
    printed = capsys.readouterr().out
    assert "RACE" not in printed, printed
