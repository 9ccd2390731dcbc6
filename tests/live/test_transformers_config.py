"""`config.json` beside transformers: no field of its is unknown, and what is accepted computes the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch and transformers: scripts/test_live")
transformers = pytest.importorskip("transformers", reason="needs torch and transformers: scripts/test_live")

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

from checkpoints import CheckpointError  # noqa: E402
from checkpoints.config import GPT_OSS_20B  # noqa: E402
from checkpoints.published_config import (  # noqa: E402
    HUGGINGFACE_FIELDS,
    huggingface_config,
    parse_config,
)
from gptoss_jax.model.gpt_oss import yarn_frequencies  # noqa: E402

ROUNDING = 2e-5
"""transformers blends frequencies in float32, which costs up to 4e-6; an ignored setting costs 1e-2."""

VALUES: dict[str, list[Any]] = {
    "factor": [1.0, 2.0, 32.0, 0.5, 7],
    "original_max_position_embeddings": [4096, 1024, 64, 4, 1 << 20],
    "beta_fast": [32.0, 8, 1.0, 0.5, 64.0, None],
    "beta_slow": [1.0, 2.0, 0.25, 16.0, None],
    "truncate": [False, False, False, True],
    "attention_factor": [None, 1.0, 1.3465735902799727],
    "mscale": [None, 0.707, 1.0, 0],
    "mscale_all_dim": [None, 1.0, 0.5, 0],
    "rope_theta": [150_000.0, 10_000.0, 2.0, 1e6],
}


def test_every_field_that_transformers_knows_is_in_the_table() -> None:
    assert set(transformers.GptOssConfig().to_dict()) - set(HUGGINGFACE_FIELDS) == set()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_accepted_computes_what_transformers_computes(seed: int) -> None:
    rng = random.Random(seed)
    accepted = 0
    for _ in range(500):
        rope: dict[str, Any] = {"rope_type": "yarn"}
        published = huggingface_config(GPT_OSS_20B, "rope_parameters")["rope_parameters"]
        changed = set(rng.sample(sorted(VALUES), rng.randrange(5)))
        for name, values in VALUES.items():
            if name in changed or name in published:
                rope[name] = rng.choice(values) if name in changed else published[name]
        fields = huggingface_config(GPT_OSS_20B, "rope_parameters") | {"rope_parameters": rope}
        del fields["initial_context_length"]
        try:
            config = parse_config(fields)[1]
        except CheckpointError:
            continue
        accepted += 1
        theirs, factor = ROPE_INIT_FUNCTIONS["yarn"](transformers.GptOssConfig(**fields), "cpu")
        frequencies, ours = yarn_frequencies(config)
        np.testing.assert_allclose(frequencies, theirs.numpy(), rtol=ROUNDING, err_msg=str(rope))
        assert ours == pytest.approx(factor, rel=1e-6), rope
    assert accepted > 100
