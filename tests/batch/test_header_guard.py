"""The header guard of a batch run: on, unless it is switched off, and part of what the output belongs to."""

import json

import pytest

from gptoss_jax.batch import BatchError, run_batch
from gptoss_jax.engine.grammar import HeaderGuard


def test_rows_are_answered_under_the_guard_and_the_run_notes_it(engine, encoding, write_lines, tmp_path):
    source = write_lines([{"id": "x", "messages": [{"role": "user", "content": "Hi"}]}])
    for name, options, expected in (("a", {}, HeaderGuard()), ("b", {"header_guard": False}, None)):
        run_batch(source, tmp_path / f"{name}.jsonl", engine=engine, encoding=encoding, **options)
        assert engine.requests[-1].sampling.header_guard == expected
        noted = json.loads((tmp_path / f"{name}.jsonl.run.json").read_text())
        assert noted["header_guard"] is (expected is not None)
    with pytest.raises(BatchError, match='"header_guard" true, this run has "header_guard" false'):
        run_batch(source, tmp_path / "a.jsonl", engine=engine, encoding=encoding, header_guard=False)
