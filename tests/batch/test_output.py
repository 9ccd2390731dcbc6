"""The output file: whole rows only, one owner, one writer."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.batch.errors import BatchError
from gptoss_jax.batch.output import OutputFile

RUN = {"input_sha256": "abc", "seed": 1, "date": "2025-01-01"}


def begun(path: Path, run: dict = RUN, **options: Any) -> OutputFile:
    """The output of a run, ready for rows."""
    out = OutputFile(path, run, **options)
    out.begin()
    return out


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), text=st.text(min_size=1, max_size=20))
def test_after_a_cut_anywhere_the_whole_rows_stay_and_the_torn_one_is_written_again(
    tmp_path_factory, cut, text
):
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    with begun(path) as out:
        for line in range(1, 6):
            out.append(line, {"id": text})
    whole = path.read_bytes()
    kept = whole[: min(cut, len(whole))]
    path.write_bytes(kept)
    with begun(path) as out:
        assert out.done == set(range(1, kept.count(b"\n") + 1))
        for line in range(1, 6):
            if line not in out.done:
                out.append(line, {"id": text})
    assert path.read_bytes() == whole


def test_a_second_writer_is_refused_while_the_first_is_at_work(tmp_path):
    path = tmp_path / "out.jsonl"
    with OutputFile(path, RUN), pytest.raises(BatchError, match="being written by another run"):
        OutputFile(path, RUN)
    OutputFile(path, RUN).close()


@pytest.mark.parametrize("name", ["input_sha256", "seed"])
def test_rows_of_another_run_are_neither_mixed_nor_lost(tmp_path, name):
    path = tmp_path / "out.jsonl"
    with begun(path) as out:
        out.append(1, {})
    before = path.read_bytes()
    with pytest.raises(BatchError, match=f'was made with "{name}" .*--overwrite'):
        OutputFile(path, {**RUN, name: "other"})
    assert path.read_bytes() == before


def test_a_setting_that_one_of_the_two_runs_lacks_is_a_difference(tmp_path):
    path = tmp_path / "out.jsonl"
    with begun(path, {**RUN, "dtype": "float32"}) as out:
        out.append(1, {})
    with pytest.raises(BatchError, match='"dtype"'):
        OutputFile(path, RUN)


def test_an_inherited_setting_is_that_of_the_run_which_is_continued(tmp_path):
    path = tmp_path / "out.jsonl"
    with begun(path) as out:
        out.append(1, {})
    with OutputFile(path, {**RUN, "date": "2026-02-02"}, inherited=frozenset({"date"})) as out:
        assert out.run["date"] == "2025-01-01"
        assert out.done == {1}


def test_overwrite_starts_anew_with_the_new_settings(tmp_path):
    path = tmp_path / "out.jsonl"
    with begun(path) as out:
        out.append(1, {})
    other = {**RUN, "seed": 2}
    with begun(path, other, overwrite=True) as out:
        assert out.done == set()
        out.append(2, {})
    assert [row["line"] for row in rows(path)] == [2]
    OutputFile(path, other).close()


@pytest.mark.parametrize("content", ["precious notes", "precious\nnotes\n"])
def test_a_file_that_no_run_made_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with pytest.raises(BatchError, match=r"no batch run's output.*out\.jsonl\.run\.json"):
        OutputFile(path, RUN)
    assert path.read_text() == content


def test_a_damaged_row_in_the_middle_is_named_and_nothing_is_cut(tmp_path):
    path = tmp_path / "out.jsonl"
    with begun(path) as out:
        out.append(1, {})
        out.append(2, {})
    damaged = path.read_bytes().replace(b"{", b"\0", 1)
    path.write_bytes(damaged)
    with pytest.raises(BatchError, match=r"line 1 of .*out\.jsonl"):
        OutputFile(path, RUN)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("sidecar", ["", "[]", '{"seed":'])
def test_an_unreadable_run_file_is_refused_in_one_line(tmp_path, sidecar):
    path = tmp_path / "out.jsonl"
    with begun(path) as out:
        out.append(1, {})
    out.run_path.write_text(sidecar)
    with pytest.raises(BatchError, match=r"out\.jsonl\.run\.json") as caught:
        OutputFile(path, RUN)
    assert "\n" not in str(caught.value)


def test_an_empty_file_is_taken_whatever_lies_beside_it(tmp_path):
    path = tmp_path / "out.jsonl"
    path.touch()
    (tmp_path / "out.jsonl.run.json").write_text('{"seed": "stale"}')
    with begun(path) as out:
        out.append(1, {})
    OutputFile(path, RUN).close()


@pytest.mark.parametrize("where", ["missing/out.jsonl", "."])
def test_a_place_that_cannot_be_written_is_refused_in_one_line(tmp_path, where):
    with pytest.raises(BatchError, match="cannot write"):
        OutputFile(tmp_path / where, RUN)


def test_a_device_is_refused():
    with pytest.raises(BatchError, match="not a regular file"):
        OutputFile(Path("/dev/null"), RUN)


@pytest.mark.parametrize("fails", ["short", "full"])
def test_a_row_that_does_not_fit_on_the_disk_leaves_no_trace(tmp_path, monkeypatch, fails):
    path = tmp_path / "out.jsonl"
    write = os.write

    def short_write(descriptor: int, data: bytes) -> int:
        written = write(descriptor, data[: len(data) // 2])
        if fails == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        return written

    with begun(path) as out:
        out.append(1, {"id": "a"})
        before = path.read_bytes()
        monkeypatch.setattr(os, "write", short_write)
        with pytest.raises(BatchError, match="cannot write"):
            out.append(2, {"id": "b"})
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert out.done == {1}
        out.append(2, {"id": "b"})
    assert [row["line"] for row in rows(path)] == [1, 2]


def test_any_text_makes_one_line_that_reads_back(tmp_path):
    path = tmp_path / "out.jsonl"
    texts = ["a\nb", "\u2028", "é😀", '"', "\x00", "\ud800 alone"]
    with begun(path) as out:
        for line, text in enumerate(texts, 1):
            out.append(line, {"id": text})
    lines = path.read_bytes().split(b"\n")[:-1]
    assert [json.loads(line)["id"] for line in lines] == texts
