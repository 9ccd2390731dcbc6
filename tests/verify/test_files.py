"""Damaged checkpoints: the right check fails, and the others go on."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from checkpoints import Checkpoint, open_checkpoint
from checkpoints.opening import TINY
from gptoss_jax.verify import files, weights
from gptoss_jax.verify.rows import Row, perform


class Altered(Checkpoint):
    """The embedded checkpoint with some parameters changed as they are read."""

    def __init__(self, changes: dict[str, Callable[[np.ndarray], object]]) -> None:
        right = open_checkpoint("tiny")
        super().__init__(right.path, right.layout, right.config, right.eos_token_ids)
        self._right, self._changes = right, changes

    def _reader(self, name: str) -> Callable[[tuple[slice, ...], np.ndarray, bool], None]:
        def read(index: tuple[slice, ...], out: np.ndarray, drop_cache: bool) -> None:
            whole = self._right.read(name)
            self._changes.get(name, lambda _: None)(whole)
            out[...] = whole[index]

        return read

    def load(self, *_: object, **__: object) -> dict:
        raise NotImplementedError


def put(index: object, value: object) -> Callable[[np.ndarray], object]:
    """A change of some elements."""
    return lambda array: array.__setitem__(index, value)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "copy"))


def hashes(folder: Path) -> Row:
    return perform(files.hash_check(folder, converted=False, most_bytes=None))


def test_the_embedded_checkpoint_passes() -> None:
    rows = [perform(files.description_check("tiny")), hashes(TINY)]
    rows += [
        perform(check(open_checkpoint("tiny"))) for check in (weights.numbers_check, weights.scales_check)
    ]
    assert [row.status for row in rows] == ["passed"] * 4, rows
    assert rows[1].details["known"] == {"model.safetensors": "the embedded model"}
    content = (TINY / "config.json").read_bytes()
    assert any(hashlib.sha256(content).hexdigest() in line for line in rows[1].lines)


def test_a_truncated_file_fails_the_checkpoint_and_not_its_hashes(copied: Path) -> None:
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    row = perform(files.description_check(str(copied)))
    assert row.status == "failed" and "is cut short" in row.measured
    assert "download or convert it again" in row.meaning
    assert hashes(copied).status == "passed"


def test_a_wrong_vocabulary_fails_the_checkpoint(copied: Path) -> None:
    file = copied / "vocabulary.tiktoken"
    file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:-5]))
    assert perform(files.description_check(str(copied))).status == "failed"


def test_a_changed_byte_makes_a_known_file_unknown(copied: Path) -> None:
    file = copied / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    row = hashes(copied)
    assert row.status == "passed" and row.details["known"] == {}


def test_a_file_that_cannot_be_read_fails_its_hash(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> object:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "open_regular", broken)
    row = hashes(copied)
    assert row.status == "failed" and "cannot be read: Input/output error" in row.measured


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_is_found_and_named(value: float) -> None:
    name = "layers.2.attention.sinks"
    row = perform(weights.numbers_check(Altered({name: put(1, value)})))
    assert row.status == "failed" and row.measured.startswith(f"{name} has 1 NaN or infinite of 4")


def test_an_empty_tensor_is_found() -> None:
    name = "layers.0.attention.key.weight"
    row = perform(weights.numbers_check(Altered({name: put(..., 0)})))
    assert row.status == "failed" and f"{name} is zero throughout" in row.measured


def test_a_scale_of_nan_is_found() -> None:
    name = "layers.1.moe.experts.down.scales"
    row = perform(weights.scales_check(Altered({name: put((3, 5, 0), 255)})))
    assert row.status == "failed" and row.measured.startswith("1 scale bytes are 255")


@pytest.mark.parametrize(
    ("lowest", "wide", "negative"), [(121 - 13, 0, 0), (121 - 14, 0, 1), (121 - 26, 0, 1), (121 - 27, 1, 0)]
)
def test_expert_maps_that_need_other_forms_are_counted(lowest: int, wide: int, negative: int) -> None:
    """By hand: 13 powers of two fit fp4, 26 fit e5m2 and fp4-, more fit no narrow form."""
    name = "layers.1.moe.experts.down"
    codes = {f"{name}.blocks": put((2, 7), 0x11)}  # no zeros, whose scales decide nothing

    def scales(array: np.ndarray) -> None:
        array[2, 7] = [lowest, 121]

    found = weights.layer_scales(Altered({**codes, f"{name}.scales": scales}), 1)
    assert (found.wide, found.negative_zero, found.wide_projections) == (wide, negative, wide)
    assert found.span == max(121 - lowest, found.span) and found.lowest == lowest


def test_scales_of_zeros_need_no_wide_form() -> None:
    name = "layers.1.moe.experts.down"
    changes = {f"{name}.scales": put((2, 7, 0), 40), f"{name}.blocks": put((2, 7, slice(0, 16)), 0x80)}
    found = weights.layer_scales(Altered(changes), 1)
    assert (found.wide, found.negative_zero, found.lowest) == (0, 0, 40)
    assert found.span < 13
