"""The first layers of a checkpoint that is not known, against the plain model."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from checkpoints import open_checkpoint
from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B
from checkpoints.opening import TINY
from gptoss_jax.compilation_cache import keep_compiled
from gptoss_jax.model.attention import SlidingAttention
from gptoss_jax.model.gpt_oss import Experts
from gptoss_jax.verify import logits, run
from gptoss_jax.verify.rows import perform


@pytest.mark.slow
def test_experts_in_turn_are_the_plain_models() -> None:
    config = open_checkpoint("tiny").config
    plain = Experts(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.standard_normal((9, config.hidden_size)), jnp.float32)
    chosen = jnp.asarray(generator.permuted(np.tile(np.arange(8), (9, 1)), axis=1)[:, :2], jnp.int32)
    shares = jnp.asarray(generator.dirichlet([1, 1], 9), jnp.float32)
    right = jax.jit(plain.__call__)(x, chosen, shares)
    got = jax.jit(logits.ExpertsInTurn(plain).__call__)(x, chosen, shares)
    assert float(jnp.abs(got - right).max() / jnp.abs(right).max()) < 1e-6


def test_pairs_of_layers_are_compared() -> None:
    assert [logits.layers_compared(one, quick=False) for one in (GPT_OSS_20B, GPT_OSS_120B)] == [2, 2]
    tiny = open_checkpoint("tiny").config
    assert logits.layers_compared(tiny, quick=False) == 4
    assert logits.layers_compared(tiny, quick=True) == 2


@pytest.mark.slow
def test_a_window_that_is_one_key_too_long_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_compiled()
    folder = shutil.copytree(TINY, tmp_path / "copy")
    settings = run.Settings(str(folder), "float32", quick=True)
    right = run._first_layers(settings, open_checkpoint(folder), "float32", perform)
    assert right.status == "passed", right.measured
    make = SlidingAttention.__init__
    monkeypatch.setattr(SlidingAttention, "__init__", lambda self, one, window: make(self, one, window + 1))
    wrong = run._first_layers(settings, open_checkpoint(folder), "float32", perform)
    assert wrong.status == "failed" and "GPTOSS_JAX_KERNELS=reference" in wrong.meaning
    assert float(str(wrong.details["median_nats"])) > 100 * float(str(wrong.details["allowed_nats"]))
