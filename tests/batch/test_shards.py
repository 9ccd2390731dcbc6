"""Shards: each line in one of them, and together what one run over the whole input would have given."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax import cli
from gptoss_jax.batch import BatchError, Shard, merge, run_batch
from gptoss_jax.batch.shards import shard_of
from tests.batch.scripted import ScriptedEngine

COUNT = 3


@pytest.fixture
def source(write_lines) -> Path:
    """Rows of all forms, bad lines, blank lines, and ids that rows of other shards have too."""
    lines: list[Any] = [{"id": f"row {i}", "prompt": f"text {i}", "n": 1 + i % 2} for i in range(1, 12)]
    lines[4:4] = [b"", b"{", {"id": "row 1", "prompt": "again"}, b"  ", {"prompt": "no id"}]
    body = {"messages": [{"role": "user", "content": "x"}]}
    lines.append({"custom_id": "row 2", "method": "POST", "url": "/v1/chat/completions", "body": body})
    lines.append({"custom_id": "own", "method": "POST", "url": "/v1/chat/completions", "body": body})
    return write_lines(lines)


@pytest.fixture
def run(encoding, tmp_path, source):
    """Runs one shard, or the whole input, to its end, and gives the output."""

    def run(index: int | None, **arguments: Any) -> Path:
        shard = None if index is None else Shard(index, arguments.pop("count", COUNT))
        path = tmp_path / "out.jsonl"
        out = arguments.pop("out", path if shard is None else shard.path(path))
        arguments.setdefault("date", "2025-06-28")
        given = arguments.pop("source", source)
        run_batch(given, out, engine=ScriptedEngine(encoding), encoding=encoding, shard=shard, **arguments)
        return out

    return run


def rows(path: Path) -> list[dict]:
    """The rows without the times, which are all that may differ."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items() if name != "created"}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return [plain(json.loads(line)) for line in path.read_bytes().splitlines()]


def test_merged_shards_are_the_whole_run_in_the_order_of_the_input(run, tmp_path, source, encoding):
    shards = [run(index) for index in (2, 0, 1)]
    assert [path.name for path in shards] == [f"out-0000{i}-of-00003.jsonl" for i in (2, 0, 1)]
    lines = [{row["line"] for row in rows(path)} for path in shards]
    assert all(
        line % COUNT == (index + 1) % COUNT
        for index, own in zip((2, 0, 1), lines, strict=True)
        for line in own
    )
    joined = tmp_path / "all.jsonl"
    merged = merge(shards, joined)
    whole = rows(run(None))
    assert rows(joined) == sorted(whole, key=lambda row: row["line"])
    assert [row["line"] for row in rows(joined)] == [*range(1, 5), 6, 7, *range(9, 19)]
    assert (merged.rows, merged.errors, merged.shards) == (len(whole), 3, COUNT)
    # The same command without the shard finds everything there.
    engine = ScriptedEngine(encoding)
    report = run_batch(source, joined, engine=engine, encoding=encoding, date="2025-06-28")
    assert (report.resumed, engine.requests) == (len(whole), [])


def test_a_shard_goes_on_after_a_kill_and_keeps_the_ids_of_others_in_mind(run, tmp_path):
    shards = [run(index) for index in range(COUNT)]
    before = [sorted(rows(path), key=lambda row: row["line"]) for path in shards]
    for index, path in enumerate(shards):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        run(index)
        assert sorted(rows(path), key=lambda row: row["line"]) == before[index]


def test_more_shards_than_lines_leave_some_empty(run, tmp_path, write_lines):
    few = write_lines([{"prompt": "a"}, {"prompt": "b"}], "few.jsonl")
    shards = [run(index, count=4, source=few) for index in range(4)]
    assert merge(shards, tmp_path / "all.jsonl").rows == 2


def test_what_is_not_all_of_one_run_is_refused_and_nothing_is_written(run, tmp_path, write_lines, encoding):
    shards = [run(index) for index in range(COUNT)]
    joined = tmp_path / "all.jsonl"

    def refused(*paths: Path) -> str:
        with pytest.raises(BatchError) as caught:
            merge(paths, joined)
        assert not joined.exists()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "of 3 shards these are missing: 1" in refused(shards[0], shards[2])
    assert "are both shard 0/3" in refused(*shards, shards[0])
    assert "is no shard" in refused(run(None), *shards)
    assert "No such file" in refused(tmp_path / "none", *shards)
    other = run(1, out=tmp_path / "other.jsonl", seed=1)
    assert 'with "seed" 0' in refused(shards[0], other, shards[2])
    more = write_lines([{"prompt": "a"}], "more.jsonl")
    other = run(1, out=tmp_path / "more_out.jsonl", source=more)
    assert '"input_sha256"' in refused(shards[0], other, shards[2])
    assert "one of 3 shards" in refused(shards[0], shards[1], run(2, count=4))

    whole = shards[1].read_bytes()
    first, _, *rest = whole.splitlines(keepends=True)
    for data, words in (
        (whole[:-1], "torn row"),
        (first + b"".join(rest), "of the 4 rows of shard 1/3: continue its run"),
        (b"", "has 0 of the 4 rows"),
        (whole + first, "has two rows of input line"),
        (b"x\n" + whole, "line 1 of"),
        (b"[]\n" + whole, "line 1 of"),
        (b'{"line":null}\n' + whole, "line 1 of"),
        (b'{"line":1}\n' + whole, "answers line 1, which is not of shard 1/3"),
        (b'{"line":-1}\n' + whole, "answers line -1"),
    ):
        shards[1].write_bytes(data)
        assert words in refused(*shards)
    shards[1].write_bytes(whole)
    with open(shards[1]) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "being written by another run" in refused(*shards)
    notes = shards[1].with_name(shards[1].name + ".run.json")
    described = notes.read_text()
    for text in ("", "[]", '{"shard": {}}', '{"shard": {"index": 5, "count": 2, "rows": 1}}', "{}"):
        notes.write_text(text)
        assert "shard" in refused(*shards) or "no batch run" in refused(*shards)
    notes.write_text(described)
    assert merge(shards, joined).rows == 16
    with pytest.raises(BatchError, match="has rows"):
        merge(shards, joined)
    assert merge(shards, joined, overwrite=True).rows == 16
    with pytest.raises(BatchError, match="is one of the shards"):
        merge(shards, shards[0], overwrite=True)


def test_an_output_is_continued_only_as_the_same_shard(run, tmp_path):
    path = run(0)
    with pytest.raises(BatchError, match='"shard"'):
        run(1, out=path)
    with pytest.raises(BatchError, match='"shard"'):
        run(None, out=path)


@pytest.mark.parametrize(
    ("text", "environment", "shard"),
    [
        ("0/1", {}, Shard(0, 1)),
        ("7/8", {"JOB_COMPLETION_INDEX": "1"}, Shard(7, 8)),
        ("auto/8", {"JOB_COMPLETION_INDEX": "3", "TPU_WORKER_ID": "1"}, Shard(3, 8)),
        ("auto", {"JOB_COMPLETION_INDEX": "3", "JOB_COMPLETIONS": "4"}, Shard(3, 4)),
        ("auto", {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}, Shard(1, 4)),
        ("auto", {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, Shard(0, 1)),
        ("auto", {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, Shard(0, 2)),
    ],
)
def test_a_shard_is_named_or_found_in_the_cluster_s_variables(text, environment, shard):
    assert shard_of(text, environment) == shard


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("8/8", {}, "I from 0 to N-1"),
        ("0/0", {}, "N from 1"),
        ("0/1000000", {}, "N from 1"),
        ("3", {}, "it must be I/N"),
        ("-1/3", {}, "it must be I/N"),
        ("1/3/4", {}, "it must be I/N"),
        ("١/٣", {}, "it must be I/N"),
        ("", {}, "it must be I/N"),
        ("auto", {}, "none of the variables"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETIONS is not set: give auto/N"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX is 'x'"),
        ("auto", {"SLURM_PROCID": "0", "SLURM_NTASKS": ""}, "SLURM_NTASKS is ''"),
        ("auto", {"SLURM_PROCID": "2", "SLURM_NTASKS": "2"}, "the shard is 2/2"),
    ],
)
def test_what_names_no_shard_is_one_line(text, environment, words):
    with pytest.raises(BatchError) as caught:
        shard_of(text, environment)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_commands_name_shards_and_merge_them(run, tmp_path, capsys):
    shards = [str(run(index)) for index in range(COUNT)]
    joined = str(tmp_path / "all.jsonl")
    assert cli.main(["merge", *shards, "--output", joined]) == 0
    assert capsys.readouterr().out == f"{joined}: 16 rows of 3 shards, 3 of them errors\n"
    assert cli.main(["merge", shards[0], "--output", joined]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "gptoss-jax: of 3 shards these are missing: 1, 2"
    assert cli.main(["batch", shards[0], "--output", "-", "--shard", "0/2"]) == 2
    assert "with --shard it must be a file" in capsys.readouterr().err
