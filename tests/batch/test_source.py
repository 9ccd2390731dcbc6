"""What an input may be: a file or a pipe, gzip or not, with or without a byte-order mark."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import itertools
import lzma
import os
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest

from gptoss_jax.batch.errors import BatchError
from gptoss_jax.batch.source import Source

LINES = b'{"prompt": "a"}\n\n{"prompt": "b"}\r\n{"prompt": "c"}'
READ = [(1, b'{"prompt": "a"}\n'), (3, b'{"prompt": "b"}\r\n'), (4, b'{"prompt": "c"}')]


def read(source: str | Path) -> tuple[list[tuple[int, bytes]], Source]:
    """All lines of a source, which are the same when they are read again."""
    with Source(source) as opened:
        lines = list(opened.read())
        assert list(opened.read()) == lines
        return lines, opened


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(LINES)
    return path


def zipped(data: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in.jsonl", data)
    return archive.getvalue()


def test_blank_lines_are_counted_and_not_given(plain):
    lines, source = read(plain)
    assert lines == READ
    assert source.rows == 3


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.jsonl"])
@pytest.mark.parametrize("members", [1, 2, 30])
def test_gzip_is_the_same_input_whatever_its_name_and_its_members(tmp_path, plain, name, members):
    cuts = [len(LINES) * part // members for part in range(members + 1)]
    packed = b"".join(gzip.compress(LINES[a:b]) for a, b in itertools.pairwise(cuts))
    other = tmp_path / "other" / name
    other.parent.mkdir()
    other.write_bytes(packed)
    lines, source = read(other)
    assert lines == READ
    assert source.sha256 == read(plain)[1].sha256


def test_a_plain_file_whose_name_ends_in_gz_is_read_as_it_is(tmp_path):
    (tmp_path / "in.gz").write_bytes(LINES)
    assert read(tmp_path / "in.gz")[0] == READ


@pytest.mark.parametrize("cut", [2, 12, -9, -1])
def test_half_a_gzip_file_is_refused_in_one_line(tmp_path, cut):
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(os.urandom(300))[:cut])
    with pytest.raises(BatchError, match=r"cannot read .*in\.gz: it is no whole gzip file"):
        Source(path)


def test_a_damaged_gzip_file_is_refused_in_one_line(tmp_path):
    data = bytearray(gzip.compress(os.urandom(300)))
    for place in (14, -6):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        (tmp_path / "in.gz").write_bytes(damaged)
        with pytest.raises(BatchError, match="no whole gzip file"):
            Source(tmp_path / "in.gz")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (lzma.compress(LINES), "compressed with xz"),
        (bz2.compress(LINES), "compressed with bzip2"),
        (b"\x28\xb5\x2f\xfd\x24\x00", "compressed with zstd"),
        (zipped(LINES), "a zip archive"),
        (LINES.decode().encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + LINES.decode().encode("utf-16-be"), "UTF-16"),
    ],
)
def test_what_nothing_here_reads_is_refused_at_once_and_named(tmp_path, data, kind):
    (tmp_path / "in.jsonl").write_bytes(data)
    with pytest.raises(BatchError, match=rf"in\.jsonl is {kind}: give JSON lines in UTF-8"):
        Source(tmp_path / "in.jsonl")


@pytest.mark.parametrize("data", [b"", b"\n\r\n \t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
def test_an_input_without_a_row_has_none(tmp_path, data):
    (tmp_path / "in.jsonl").write_bytes(data)
    lines, source = read(tmp_path / "in.jsonl")
    assert (lines, source.rows) == ([], 0)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, plain):
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf" + LINES)
    lines, source = read(tmp_path / "marked")
    assert lines == READ
    assert source.sha256 != read(plain)[1].sha256


def test_standard_input_is_the_same_input_as_the_file(plain, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(LINES))))
    lines, source = read("-")
    assert (lines, source.name) == (READ, "standard input")
    assert source.sha256 == read(plain)[1].sha256


def test_a_closed_standard_input_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BatchError, match="cannot read standard input: it is closed"):
        Source("-")


def test_a_path_that_is_a_hyphen_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-").write_bytes(LINES)
    assert read(Path("-"))[0] == read("./-")[0] == READ


def test_a_named_pipe_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[LINES])
    writer.start()
    lines, source = read(tmp_path / "pipe")
    writer.join()
    assert (lines, source.rows) == (READ, 3)


@pytest.mark.parametrize(
    ("where", "reason"), [("missing", "No such file or directory"), (".", "Is a directory")]
)
def test_what_cannot_be_read_is_one_line(tmp_path, where, reason):
    with pytest.raises(BatchError, match=f"cannot read .*: {reason}"):
        Source(tmp_path / where)


def test_no_room_for_a_copy_of_a_pipe_is_one_line(monkeypatch):
    def full() -> io.FileIO:
        file = io.FileIO("/dev/full", "r+")
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES)))
    with pytest.raises(BatchError, match=f"cannot keep standard input in .*: {os.strerror(errno.ENOSPC)}"):
        Source("-")


@pytest.mark.parametrize("change", [b"more\n", b"x"])
def test_an_input_that_grows_while_it_is_read_is_noticed_and_not_followed(plain, change):
    with Source(plain) as source:
        with open(plain, "ab") as file:
            file.write(b"\n" + change)
        lines = source.read()
        with pytest.raises(BatchError, match="changed while it was being read"):
            for _ in range(10):
                next(lines)
