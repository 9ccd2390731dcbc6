"""The index beside a large output: it saves time, and never says what the output does not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.batch import index, output
from gptoss_jax.batch.ids import IdTable, id_digest
from gptoss_jax.batch.line_set import LineSet
from gptoss_jax.batch.output import OutputFile

RUN = {"input_sha256": "abc", "seed": 1}
ROWS = 300


@pytest.fixture(autouse=True)
def small_outputs_have_one(monkeypatch) -> None:
    monkeypatch.setattr(output, "INDEXED_FROM", 20)
    monkeypatch.setattr(index, "_SAMPLES", 8)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An output whose rows are in no order, every seventh an error row, with its index."""
    path = tmp_path / "out.jsonl"
    lines = list(range(1, ROWS + 1))
    random.Random(4).shuffle(lines)
    with OutputFile(path, RUN) as out:
        out.begin()
        for line in lines[:30]:
            out.append(line, row(line))
    with OutputFile(path, RUN) as out:  # as a run that goes on
        out.begin()
        for line in lines[30:]:
            out.append(line, row(line))
    return path


def row(line: int) -> dict:
    return {"id": f"row {line}", "error": {"code": "x"} if line % 7 == 0 else None}


def index_of(path: Path) -> Path:
    return path.with_name(path.name + ".index")


def told(path: Path) -> tuple[set[int], set[int], dict[bytes, int]]:
    """What a run that goes on learns of an output."""
    with OutputFile(path, RUN) as out:
        out.begin()
        return set(out.done), set(out.failed), dict(out.known_ids())


def read(path: Path) -> tuple[set[int], set[int], dict[bytes, int]]:
    """The same, from the rows alone."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return (
        {one["line"] for one in rows},
        {one["line"] for one in rows if one["error"]},
        {id_digest(one["id"]): one["line"] for one in rows},
    )


def test_a_run_goes_on_without_reading_the_rows(made, monkeypatch):
    expected, parsed = read(made), []
    loads = json.loads
    monkeypatch.setattr(index.json, "loads", lambda raw: parsed.append(raw) or loads(raw))
    assert told(made) == expected
    assert len(parsed) < 15, "the samples and the description of the run"


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_a_crash_leaves_of_both_files_the_rows_of_the_output_are_told(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("crash") / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "INDEXED_FROM", 5)
        with OutputFile(path, RUN) as out:
            out.begin()
            for line in range(1, 13):
                out.append(line, row(line))
            out._sync()
        rows, records = path.read_bytes(), index_of(path).read_bytes()
        path.write_bytes(rows[: data.draw(st.integers(0, len(rows)))])
        kept = data.draw(st.integers(0, len(records)))
        emptied = data.draw(st.sampled_from([0, len(records) - kept]))
        index_of(path).write_bytes(records[:kept] + bytes(emptied))
        expected = read(path)
        assert told(path) == expected
        with OutputFile(path, RUN) as out:
            out.begin()
            for line in range(1, 13):
                if line not in out.done:
                    out.append(line, row(line))
        assert read(path)[0] == set(range(1, 13))
        assert told(path) == read(path)
        assert len(path.read_bytes()) == len(rows)


def test_an_output_that_was_changed_by_hand_is_read(made):
    lines = made.read_bytes().splitlines(keepends=True)
    for changed in (
        lines[1:],
        [line for line in lines if b'"error":null' in line],
        lines[:150] + lines[151:],
        [*lines[:-1], b'{"id":"row 999","error":null,"line":999}\n'],
        lines[:20],
        [],
    ):
        index_before = index_of(made).read_bytes()
        made.write_bytes(b"".join(changed))
        expected = read(made)
        assert told(made) == expected
        made.write_bytes(b"".join(lines))
        index_of(made).write_bytes(index_before)


@pytest.mark.parametrize("content", [b"", b"x" * 5000, bytes(5000)])
def test_an_index_that_is_none_is_made_anew(made, content):
    before = index_of(made).read_bytes()
    index_of(made).write_bytes(content)
    assert told(made) == read(made)
    assert index_of(made).read_bytes() == before


def test_an_index_that_cannot_be_written_is_done_without(made):
    expected = read(made)
    index_of(made).unlink()
    index_of(made).mkdir()
    assert told(made) == expected


def test_error_rows_that_are_answered_again_leave_the_index_too(made):
    with OutputFile(made, RUN, retry_errors=True) as out:
        out.begin()
        out.append(7, {"id": "row 7", "error": None})
    assert told(made) == read(made)
    assert 7 in told(made)[0] and 14 not in told(made)[0]


def test_a_small_output_and_a_new_one_have_none(tmp_path, made):
    with OutputFile(made, RUN, overwrite=True) as out:
        out.begin()
        out.append(1, row(1))
    assert not index_of(made).exists()


def test_an_id_that_only_repeats_another_is_not_known_from_its_row(tmp_path):
    path = tmp_path / "out.jsonl"
    duplicate = {"code": "duplicate_id", "message": "…"}
    with OutputFile(path, RUN) as out:
        out.begin()
        out.append(1, {"id": "a", "error": duplicate})
        out.append(2, {"custom_id": "b", "response": {"status_code": 400, "body": {"error": duplicate}}})
        out.append(3, {"custom_id": None, "response": None, "error": {"code": "invalid_json"}})
        out.append(4, {"custom_id": "c", "response": {"status_code": 200, "body": {}}, "error": None})
        out.append(5, {"id": 7, "error": {"code": "x"}})
    with OutputFile(path, RUN) as out:
        out.begin()
        assert dict(out.known_ids()) == {id_digest("c"): 4, id_digest("7"): 5}


@pytest.mark.parametrize("line", ["-1", "0", "1e30", "1000000000000", "null", '"x"'])
def test_a_row_with_a_number_that_no_line_has_is_named(tmp_path, line):
    path = tmp_path / "out.jsonl"
    with OutputFile(path, RUN) as out:
        out.begin()
        out.append(1, {})
    with open(path, "a") as file:
        file.write(f'{{"error":null,"line":{line}}}\n')
    with pytest.raises(output.BatchError, match=r"line 2 of .* is no row of a batch run"):
        OutputFile(path, RUN)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 70))))
def test_a_line_set_is_a_set(changes):
    ours, plain = LineSet(), set()
    for adds, line in changes:
        (ours.add if adds else ours.discard)(line)
        (plain.add if adds else plain.discard)(line)
        assert len(ours) == len(plain) and ours == plain and plain == ours
    assert list(ours) == sorted(plain)
    assert [line in ours for line in range(-2, 80)] == [line in plain for line in range(-2, 80)]
    assert ours - LineSet([3]) == plain - {3}
    assert "x" not in ours


def test_ids_keep_their_first_line():
    with IdTable() as ids:
        ids.add([(id_digest("a"), 5), (id_digest("a"), 6)])
        assert [ids.first_line(id_digest(key), line) for key, line in (("a", 7), ("b", 8), ("b", 9))] == [
            5,
            8,
            8,
        ]
