"""Host memory does not grow with the rows: input, ids, lines that are done, output and index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, resource, sys, time
from pathlib import Path
from gptoss_jax.batch.ids import IdTable, id_digest
from gptoss_jax.batch.output import OutputFile
from gptoss_jax.batch.source import Source

folder, rows = Path(sys.argv[1]), int(sys.argv[2])
with open(folder / "in.jsonl", "w") as file:
    for number in range(rows):
        file.write(json.dumps({"id": f"row-{number}", "prompt": f"What is {number} + 1?"}) + "\\n")
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, times = peak(), []
for _ in range(2):  # the second time, all is there
    started, first = time.monotonic(), None
    with Source(folder / "in.jsonl") as source, OutputFile(folder / "out.jsonl", {"a": source.sha256}) as out:
        out.begin()
        with IdTable() as ids:
            ids.add(out.known_ids())
            for number, raw in source.read():
                if first is None:
                    first = time.monotonic() - started
                if number in out.done:
                    continue
                row = json.loads(raw)
                assert ids.first_line(id_digest(row["id"]), number) == number
                out.append(number, {"id": row["id"], "text": "Yes.", "error": None})
        assert len(out.done) == rows
    times.append([first, time.monotonic() - started])
print(json.dumps({"MiB": peak() - before, "first row and all, seconds": times}))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """A set of numbers and a dictionary of ids took some 200 bytes a row: 20 MiB for these."""
    grown = []
    for rows in (10_000, 110_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder), str(rows)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        grown.append(json.loads(done.stdout)["MiB"])
    # SQLite fills its 16 MiB of cache in the meantime.
    assert grown[1] - grown[0] < 17
