"""Where training starts: random weights with two structures that a model this small does not find by itself.

*Spellings of a word.* `Paris`, ` Paris` and `paris` begin with nearly the same embedding, as do ` weather`
and `_weather`. Copying a word from a question into JSON, or finding the function a question is about, then
needs no table of which token belongs to which.

*Induction heads* (Olsson et al., 2022). Layer 0 has a head that looks one token back, by a rotary phase put
into its query and key biases, and writes down what it saw. Layer 1 looks for places where the current token
was just seen, on rotary dimensions that turn too slowly to matter, and copies what follows there. The
unembedding begins as a multiple of the embedding, so what is copied is predicted.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from checkpoints.config import ModelConfig
from gptoss_jax.model.gpt_oss import GptOss, yarn_frequencies
from gptoss_jax.tiny.experts import FloatExperts

EMBEDDING_SCALE = 0.5
WORD_SHARE = 0.75
"""Share of an embedding's variance that all spellings of a word have in common."""
UNEMBEDDING_FACTOR = 0.3
_PHASE_PAIRS = 4
"""Fast rotary pairs that together single out one distance."""
_PHASE_STRENGTH = 5.0
_MATCH_STRENGTH = 1.5
_COPY_STRENGTH = 3.0
_BACKGROUND = 0.1
"""What is left of the random weights beside a structure."""
_SLOW = 2e-3
"""Radians per token below which a rotary pair hardly turns within a prompt."""

Weights = dict[str, np.ndarray]


def word_of(token: bytes) -> str | None:
    """The word that a token spells: its letters in lower case; None if it spells none."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return None
    text = text[1:] if text and not text[0].isalpha() else text
    return text.lower() if text.isalpha() else None


def _embedding(rng: np.random.Generator, vocabulary: list[bytes], rows: int, size: int) -> np.ndarray:
    own = rng.standard_normal((rows, size))
    shared: dict[str, np.ndarray] = {}
    for row, token in enumerate(vocabulary):
        word = word_of(token)
        if word is not None:
            common = shared.setdefault(word, rng.standard_normal(size))
            own[row] = WORD_SHARE**0.5 * common + (1 - WORD_SHARE) ** 0.5 * own[row]
    return EMBEDDING_SCALE * own


def _random(rng: np.random.Generator, config: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> Weights:
    into_residual = (2 * config.num_layers) ** -0.5
    weights: Weights = {}
    for name, shape in shapes.items():
        if name.endswith("norm.scale"):
            weights[name] = np.ones(shape)
        elif name.endswith((".bias", ".sinks")):
            weights[name] = np.zeros(shape)
        elif name.endswith("router.weight"):
            weights[name] = 0.02 * rng.standard_normal(shape)
        else:
            scale = into_residual if name.endswith(("output.weight", "down.weight")) else 1.0
            weights[name] = scale * shape[-1] ** -0.5 * rng.standard_normal(shape)
    return weights


def _add_induction(rng: np.random.Generator, config: ModelConfig, weights: Weights) -> None:
    size, half = config.head_size, config.head_size // 2
    groups = config.num_heads // config.num_kv_heads
    frequencies, _ = yarn_frequencies(config)
    basis = np.linalg.qr(rng.standard_normal((config.hidden_size, config.hidden_size)))[0]
    copied = np.linalg.qr(rng.standard_normal((config.hidden_size, config.hidden_size)))[0]
    read, write = basis[:size], basis[size : 2 * size].T  # [h, D] and [D, h], orthogonal to each other

    first = "layers.0.attention."
    weights[first + "key.weight"][:size] *= _BACKGROUND
    weights[first + "key.bias"][:_PHASE_PAIRS] = _PHASE_STRENGTH
    weights[first + "value.weight"][:size] = read
    weights[first + "output.weight"][:, :size] = write  # head 0 alone writes down what it saw
    for group in range(groups):
        distance, start = group + 1, group * size
        angles = distance * frequencies[:_PHASE_PAIRS]
        bias = weights[first + "query.bias"]
        weights[first + "query.weight"][start : start + size] *= _BACKGROUND
        bias[start : start + _PHASE_PAIRS] = _PHASE_STRENGTH * np.cos(angles)
        bias[start + half : start + half + _PHASE_PAIRS] = -_PHASE_STRENGTH * np.sin(angles)

    second = "layers.1.attention."
    slow = np.flatnonzero(frequencies < _SLOW)
    slow = np.concatenate([slow, slow + half])
    for kv_head in range(config.num_kv_heads):
        rows = slice(kv_head * size, (kv_head + 1) * size)
        matched = (kv_head * len(slow) + np.arange(len(slow))) % size
        key = weights[second + "key.weight"][rows]
        key *= _BACKGROUND
        key[slow] = _MATCH_STRENGTH * write[:, matched].T
        weights[second + "value.weight"][rows] = copied[rows]
        for head in range(kv_head * groups, (kv_head + 1) * groups):
            columns = slice(head * size, (head + 1) * size)
            query = weights[second + "query.weight"][columns]
            query *= _BACKGROUND
            query[slow] = _MATCH_STRENGTH * read[matched]
            weights[second + "output.weight"][:, columns] = _COPY_STRENGTH / groups * copied[rows].T


def float_model(config: ModelConfig) -> tuple[nnx.GraphDef, dict[str, tuple[int, ...]]]:
    """The trained model's structure, and the shape of every parameter by name."""

    def build() -> GptOss:
        model = GptOss(config, rngs=nnx.Rngs(0))
        for layer in model.layers:
            layer.moe.experts = FloatExperts(config, dtype=jnp.float32)  # type: ignore[assignment]
        return model

    graph, state = nnx.split(nnx.eval_shape(build))
    shapes = {".".join(map(str, path)): leaf.shape for path, leaf in nnx.to_flat_state(state)}
    return graph, dict(sorted(shapes.items()))


def initial_parameters(config: ModelConfig, vocabulary: list[bytes], seed: int) -> dict[str, jax.Array]:
    """Every float parameter by name, float32. `vocabulary`: the bytes of the ordinary tokens, by id."""
    rng = np.random.default_rng(seed)
    _, shapes = float_model(config)
    weights = _random(rng, config, shapes)
    weights["embedding.weight"] = _embedding(rng, vocabulary, config.vocabulary_size, config.hidden_size)
    _add_induction(rng, config, weights)
    weights["unembedding.weight"] = UNEMBEDDING_FACTOR * weights["embedding.weight"]
    return {name: jnp.asarray(value, jnp.float32) for name, value in weights.items()}
