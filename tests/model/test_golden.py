"""The plain and the served model against what transformers computed on the same random checkpoints.

`scripts/make_golden` wrote the files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from checkpoints import open_checkpoint
from gptoss_jax.model import GptOss, gpt_oss, load, load_plain
from gptoss_jax.model.gpt_oss import decode_mxfp4, yarn_frequencies
from pallas_kernels import mxfp4
from tests.golden.cases import CASES, DEQUANTISATION, FAR, Case
from tests.golden.distances import BFLOAT16_FACTOR, TOLERANCE, relative_difference, rms_distance
from tests.golden.running import cached_pass, full_pass

SINGLES = 6
"""Tokens at the end of a prompt that cached runs take one by one, as decoding does."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """A case, its checkpoint and plain model, the golden logits, and the plain model's."""

    case: Case
    folder: Path
    model: GptOss
    oracle: np.ndarray
    oracle_bfloat16: np.ndarray
    logits: np.ndarray


def golden_of(case: Case) -> Mapping[str, np.ndarray]:
    """A case's golden file, after checking that it was made from the case's present weights and tokens."""
    golden = np.load(case.golden)
    for what, expected in (
        ("weights", case.weights_digest()),
        ("tokens", case.tokens()),
        ("positions", case.positions()),
    ):
        assert np.array_equal(golden[what], expected), f"other {what} than the golden file's: make it again"
    return golden


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    case: Case = request.param
    golden = golden_of(case)
    folder = case.write(tmp_path_factory.mktemp(case.name))
    model = load_plain(folder)
    return Compared(
        case,
        folder,
        model,
        golden["logits"],
        golden["logits_bfloat16"].view(ml_dtypes.bfloat16).astype(np.float32),
        full_pass(model, case.tokens(), case.positions()),
    )


def test_float32_logits_are_the_oracles(compared: Compared) -> None:
    assert relative_difference(compared.logits, compared.oracle) <= TOLERANCE
    np.testing.assert_array_equal(compared.logits.argmax(-1), compared.oracle.argmax(-1))


@pytest.mark.parametrize(
    ("compared", "chunk"),
    [
        pytest.param(case, chunk, marks=() if (case, chunk) == (CASES[-1], 7) else pytest.mark.slow)
        for case in CASES
        for chunk in (1, 7, 16, "whole")
    ],
    ids=lambda value: value.name if isinstance(value, Case) else None,
    indirect=["compared"],
)
def test_the_served_model_over_a_cache_is_the_plain_one(compared: Compared, chunk: int | str) -> None:
    tokens, positions = compared.case.tokens(), compared.case.positions()
    size = compared.case.length - SINGLES if chunk == "whole" else int(chunk)
    cached = cached_pass(load(compared.folder), tokens, positions, size, SINGLES)
    assert relative_difference(cached, compared.logits) <= TOLERANCE
    assert relative_difference(cached, compared.oracle) <= TOLERANCE
    np.testing.assert_array_equal(cached.argmax(-1), compared.oracle.argmax(-1))


def test_bfloat16_is_about_as_close_to_float32_as_the_oracles_own(compared: Compared) -> None:
    model = load_plain(compared.folder, jnp.bfloat16)
    logits = full_pass(model, compared.case.tokens(), compared.case.positions())
    allowed = BFLOAT16_FACTOR * rms_distance(compared.oracle_bfloat16, compared.oracle)
    assert rms_distance(logits, compared.oracle) <= allowed


def test_both_layouts_of_the_same_weights_are_one_model(compared: Compared, tmp_path: Path) -> None:
    other = "original" if compared.case.layout == "huggingface" else "huggingface"
    folder = compared.case.write(tmp_path / "other", other)
    here, there = open_checkpoint(compared.folder), open_checkpoint(folder)
    assert (here.layout, there.layout) == (compared.case.layout, other)
    for opened in (here, there):
        config = compared.case.config
        if opened.layout == "original":  # says of the context only how YaRN stretches it
            stretched = int(config.yarn_original_length * config.yarn_factor)
            config = dataclasses.replace(config, context_length=stretched)
        assert opened.config == config
    ours, theirs = here.load(), there.load()
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.dtype == theirs[name].dtype
        assert np.asarray(values).tobytes() == np.asarray(theirs[name]).tobytes(), name
    logits = full_pass(load_plain(folder), compared.case.tokens(), compared.case.positions())
    np.testing.assert_array_equal(logits, compared.logits)


@pytest.mark.parametrize("case", [*CASES, FAR], ids=lambda case: case.name)
def test_rope_frequencies_are_the_oracles_to_its_float32_rounding(case: Case) -> None:
    ours, _ = yarn_frequencies(case.config)
    np.testing.assert_allclose(ours, np.load(case.golden)["frequencies"], rtol=2**-20, atol=0)


def test_far_positions_agree_given_the_oracles_rounding_of_the_frequencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = golden_of(FAR)
    model = load_plain(FAR.write(tmp_path / "far"))
    _, factor = yarn_frequencies(FAR.config)
    monkeypatch.setattr(gpt_oss, "yarn_frequencies", lambda config: (golden["frequencies"], factor))
    # Compiled with these frequencies: no other test runs a model of FAR's sizes.
    logits = full_pass(model, FAR.tokens(), FAR.positions())
    assert relative_difference(logits, golden["logits"]) <= TOLERANCE
    np.testing.assert_array_equal(logits.argmax(-1), golden["logits"].argmax(-1))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_every_byte_at_every_scale_decodes_to_the_oracles_bits(dtype: np.dtype) -> None:
    golden = np.load(DEQUANTISATION)
    blocks, scales = golden["blocks"], golden["scales"]
    assert len(np.unique(blocks)) == len(np.unique(scales)) == 256
    expected = golden[np.dtype(dtype).name]
    decoded = np.asarray(mxfp4.decode(blocks.reshape(len(blocks), -1), scales, dtype))
    np.testing.assert_array_equal(decoded.view(expected.dtype), expected)


def test_the_plain_model_decodes_every_byte_at_every_scale_to_the_oracles_bits() -> None:
    golden = np.load(DEQUANTISATION)
    blocks, scales = golden["blocks"], golden["scales"]
    decoded = np.asarray(decode_mxfp4(jnp.asarray(blocks.reshape(len(blocks), -1)), jnp.asarray(scales)))
    normal = slice(2, 255)  # scales 0 and 1 give subnormal numbers, which XLA may take for zeros
    np.testing.assert_array_equal(decoded[normal].view(np.uint32), golden["float32"][normal])
