"""The model beside transformers, both running now, on the cases of the golden files and on fresh ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and transformers: scripts/test_live")
pytest.importorskip("transformers", reason="needs torch and transformers: scripts/test_live")

from gptoss_jax.model import load, load_plain  # noqa: E402
from pallas_kernels import mxfp4  # noqa: E402
from tests.golden import oracle  # noqa: E402
from tests.golden.cases import CASES, DEQUANTISATION, Case  # noqa: E402
from tests.golden.distances import BFLOAT16_FACTOR, TOLERANCE, relative_difference, rms_distance  # noqa: E402
from tests.golden.running import cached_pass, full_pass  # noqa: E402

FRESH_SEEDS = range(100, 106)


def write_both(case: Case, folder: Path) -> tuple[Path, Path]:
    """The checkpoint in the case's layout, for us, and in the one that transformers reads."""
    ours = case.write(folder / "ours")
    return ours, ours if case.layout == "huggingface" else case.write(folder / "theirs", "huggingface")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float32_logits_are_transformers(case: Case, tmp_path: Path) -> None:
    ours, theirs = write_both(case, tmp_path)
    tokens, positions = case.tokens(), case.positions()
    expected = oracle.logits(oracle.load(theirs, torch.float32), tokens, positions)
    plain, served = load_plain(ours), load(ours)
    for logits in (full_pass(plain, tokens, positions), cached_pass(served, tokens, positions, 7, singles=3)):
        assert relative_difference(logits, expected) <= TOLERANCE
        np.testing.assert_array_equal(logits.argmax(-1), expected.argmax(-1))
    assert relative_difference(np.load(case.golden)["logits"], expected) <= TOLERANCE, (
        "the golden file is stale"
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_over_several_checkpoints_bfloat16_is_as_close_to_float32_as_transformers_own(
    case: Case, tmp_path: Path
) -> None:
    expected, ours, theirs = [], [], []
    for seed in FRESH_SEEDS:
        fresh = dataclasses.replace(case, seed=seed)
        tokens, positions = fresh.tokens(), fresh.positions()
        our_folder, their_folder = write_both(fresh, tmp_path / str(seed))
        expected.append(oracle.logits(oracle.load(their_folder, torch.float32), tokens, positions))
        theirs.append(oracle.logits(oracle.load(their_folder, torch.bfloat16), tokens, positions))
        ours.append(full_pass(load_plain(our_folder, jnp.bfloat16), tokens, positions))
    allowed = BFLOAT16_FACTOR * rms_distance(theirs, expected)
    assert rms_distance(ours, expected) <= allowed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_byte_at_every_scale_decodes_to_transformers_bits(dtype: str) -> None:
    blocks, scales = oracle.every_byte_at_every_scale()
    expected = oracle.dequantise(blocks, scales, getattr(torch, dtype))
    decoded = np.asarray(mxfp4.decode(blocks.reshape(len(blocks), -1), scales, dtype))
    np.testing.assert_array_equal(decoded.view(expected.dtype), expected)
    np.testing.assert_array_equal(np.load(DEQUANTISATION)[dtype], expected, "the golden file is stale")
