"""The engine's log-probabilities against stored ones, and against the plain model's first layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from checkpoints import Checkpoint, open_checkpoint
from checkpoints.config import GPT_OSS_20B, ModelConfig
from checkpoints.opening import TINY
from checkpoints.parameters import UINT8, parameter_specs
from gptoss_jax.engine import Completion, Engine, Request, SamplingParams
from gptoss_jax.engine.host_memory import host_memory
from gptoss_jax.model import gpt_oss, plain_with_parameters
from gptoss_jax.verify.distance import Right, allowed, distances, noise
from gptoss_jax.verify.golden import Answer, golden
from gptoss_jax.verify.rows import Check, Outcome

FOLLOWING = 16
"""Tokens after a prompt that the first layers are compared at."""

LIKELIEST = 64
"""Tokens at each place whose log-probabilities the plain model is asked for."""

_DECODED_WEIGHTS = 2e9
"""How many weights of experts the plain model may decode: those of two layers of 20b are 1.6e9."""


def rotary_check() -> Check:
    """RoPE's frequencies, which the plain and the served model share."""
    return Check(
        "rotary frequencies",
        "positions turn queries and keys by the angles that transformers computes, YaRN included",
        "gptoss_jax.model.gpt_oss computes other angles than transformers: this version is broken",
        _rotary,
    )


def _rotary() -> Outcome:
    found, factor = gpt_oss.yarn_frequencies(GPT_OSS_20B)
    right = golden().frequencies
    error = float(np.max(np.abs(found / right - 1)))
    expected = 0.1 * np.log(GPT_OSS_20B.yarn_factor) + 1
    probe = _rotation_error(right, expected)
    return Outcome(
        max(error, probe) <= 2.0**-21 and abs(factor - expected) <= 1e-12,
        f"largest relative difference {error:.2g}; a rotated vector differs by {probe:.2g}",
        f"{2.0**-21:.2g} (8 roundings of float32)",
        {"error": error, "rotated_error": probe, "factor": factor},
    )


def _rotation_error(frequencies: np.ndarray, factor: float) -> float:
    """How far `rotate` is from the definition in float64, at a small position; relative to the vector."""
    pairs = len(frequencies)
    x = np.random.default_rng(0).standard_normal(2 * pairs)
    position = 3
    angles = position * frequencies.astype(np.float64)
    first, second = x[:pairs], x[pairs:]
    right = factor * np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ]
    )
    cos, sin = gpt_oss.rotations(jnp.array([[position]], jnp.int32), GPT_OSS_20B)
    got = gpt_oss.rotate(jnp.asarray(x, jnp.float32)[None, None, None], cos, sin)
    return float(np.abs(np.asarray(got, np.float64)[0, 0, 0] - right).max() / np.abs(right).max())


def stored_check(dtype: str, run: Callable[[], Outcome]) -> Check:
    """The embedded model, all layers, against transformers.

    dtype: what it computes in. run: `compare_stored` on an engine of it.
    """
    return Check(
        f"embedded model, {dtype}",
        "with the model in the package, all parts together (prefill, decoding, caches, experts) compute what "
        "transformers computed",
        "the served model computes something else than transformers on this device: try "
        "GPTOSS_JAX_KERNELS=reference; if that passes a kernel is wrong here, else the model's code is",
        run,
    )


def compare_stored(engine: Engine, dtype: str, answers: Sequence[Answer] | None = None) -> Outcome:
    """Runs stored prompts on an engine of the embedded model.

    dtype: what products are rounded to. answers: what is stored; None for all of it.
    """
    answers = golden().answers if answers is None else answers
    rights = [Right(one.tokens, one.ids, one.logprobs, one.coarse) for one in answers]
    prompts = [one.prompt for one in answers]
    completions = complete(engine, prompts, max(len(one.tokens) for one in rights))
    return judge(completions, rights, dtype, open_checkpoint(TINY).config)


def complete(engine: Engine, prompts: Sequence[list[int]], count: int) -> list[Completion]:
    """What follows each prompt, greedily, with log-probabilities of the 20 likeliest tokens; all at once."""
    sampling = SamplingParams(temperature=0, max_tokens=count, logprobs=20)
    requests = [Request(f"verify-{number}", prompt, sampling) for number, prompt in enumerate(prompts)]
    found = {completion.id: completion for completion in engine.run(requests)}
    return [found[request.id] for request in requests]


def judge(
    completions: Sequence[Completion], rights: Sequence[Right], dtype: str, config: ModelConfig
) -> Outcome:
    """The outcome of comparing completions with what is right.

    dtype: what products are rounded to. config: the model's sizes.
    """
    terms = max(config.hidden_size, config.intermediate_size, config.num_heads * config.head_size)
    each = [distances(*pair) for pair in zip(completions, rights, strict=True)]
    every = [distance for one in each for distance in one]
    same = sum(
        found.tokens == list(right.tokens[: len(found.tokens)])
        for found, right in zip(completions, rights, strict=True)
    )
    median, worst, bound = float(np.median(every)), max(every), allowed(rights, dtype, terms)
    details = {
        "median_nats": median,
        "worst_nats": worst,
        "allowed_nats": bound,
        "bfloat16_noise_nats": noise(rights),
        "places": len(every),
        "same_completions": same,
        "completions": len(rights),
    }
    return Outcome(
        median <= bound,
        f"log-probabilities differ by {median:.2g} nats at the typical of {len(every)} places, {worst:.2g} "
        f"at the worst; {same} of {len(rights)} completions have the same tokens",
        f"{bound:.2g} nats at the typical place",
        details,
    )


def layers_compared(config: ModelConfig, *, quick: bool) -> int:
    """How many layers are compared with the plain model: pairs of a sliding and a full layer.

    As many as the plain model computes in a minute or two, at least two; with `quick` two.
    """
    decoded = 3 * config.num_experts * config.hidden_size * config.intermediate_size
    count = 2 if quick else max(2, int(_DECODED_WEIGHTS / decoded) // 2 * 2)
    return min(config.num_layers, count)


class ExpertsInTurn(gpt_oss.Experts):
    """The plain model's experts, one after the other for all tokens, so that each is decoded once.

    The plain model decodes them for every token, which takes a second a token at the published sizes.
    """

    def __init__(self, experts: gpt_oss.Experts):
        self.limit, self.gate_up, self.down = experts.limit, experts.gate_up, experts.down

    def __call__(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        """As `gpt_oss.Experts`: x [T, D], int32 [T, A], float32 [T, A] → [T, D]."""

        def one(total: jax.Array, expert: jax.Array) -> tuple[jax.Array, None]:
            share = jnp.where(experts == expert, weights, 0).sum(axis=-1)
            (gate, up), (gate_bias, up_bias) = (
                jnp.unstack(part[0]) for part in self.gate_up.of(expert[None], x.dtype)
            )
            gate = jnp.einsum("td,fd->tf", x, gate, preferred_element_type=jnp.float32) + gate_bias
            up = jnp.einsum("td,fd->tf", x, up, preferred_element_type=jnp.float32) + up_bias
            activations = gpt_oss.clamped_swiglu(gate, up, self.limit).astype(x.dtype)
            down, bias = (part[0] for part in self.down.of(expert[None], x.dtype))
            out = jnp.einsum("tf,df->td", activations, down, preferred_element_type=jnp.float32) + bias
            return total + share[:, None] * out, None

        numbers = jnp.arange(self.gate_up.blocks.shape[0])
        total, _ = jax.lax.scan(one, jnp.zeros(x.shape, jnp.float32), numbers)
        return total.astype(x.dtype)


def plain_check(layers: int, run: Callable[[], Outcome]) -> Check:
    """layers: how many are compared. run: `compare_plain` of them."""
    return Check(
        "first layers",
        f"the first {layers} layers of this checkpoint are computed as the plain model computes them",
        "with this checkpoint's weights and sizes the served model computes something else than the plain "
        "one: try GPTOSS_JAX_KERNELS=reference; if that passes a kernel is wrong at these sizes",
        run,
    )


def compare_plain(checkpoint: Checkpoint, prompt: list[int], completion: Completion, dtype: str) -> Outcome:
    """Compares a completion by the engine of some layers with the plain model, on the CPU where there is one.

    checkpoint: the same layers. dtype: what products are rounded to.
    """
    needed, memory = plain_bytes(checkpoint.config), host_memory()
    device = _host_device()
    if device.platform == "cpu" and memory is not None and needed > memory:
        return Outcome(
            None, f"the plain model needs {needed / 1e9:.3g} GB; the machine has {memory / 1e9:.3g} GB"
        )
    right = right_of(checkpoint, prompt, completion, device)
    return judge([completion], [right], dtype, checkpoint.config)


def plain_bytes(config: ModelConfig) -> int:
    """The memory that the plain model needs in float32, in bytes, logits and the reading of it included."""
    specs = parameter_specs(config).values()
    return sum(spec.num_bytes * (1 if spec.dtype == UINT8 else 2) for spec in specs) * 5 // 4


def right_of(checkpoint: Checkpoint, prompt: list[int], completion: Completion, device: jax.Device) -> Right:
    """What the plain model gives at each place of a completion."""
    tokens = prompt + completion.tokens[:-1]
    exact, coarse = (
        _plain_logprobs(checkpoint, tokens, len(completion.tokens), dtype, device)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    ids = np.argsort(-exact, axis=-1, kind="stable")[:, :LIKELIEST]
    taken = (np.take_along_axis(one, ids, axis=-1) for one in (exact, coarse))
    return Right(completion.tokens, ids, *taken)


def _host_device() -> jax.Device:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names another platform only
        return jax.local_devices()[0]


def _plain_logprobs(
    checkpoint: Checkpoint, tokens: list[int], last: int, dtype: DTypeLike, device: jax.Device
) -> np.ndarray:
    """Log-probabilities float64 [last, V] at the last of the tokens."""
    where = jax.sharding.SingleDeviceSharding(device)
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        parameters = checkpoint.load(lambda _: where, dtype)
        plain = plain_with_parameters(checkpoint.config, parameters, dtype)
        for layer in plain.layers:
            layer.moe.experts = ExpertsInTurn(layer.moe.experts)
        graph, state = nnx.split(plain)

        def run(state: nnx.State, tokens: jax.Array) -> jax.Array:
            model = nnx.merge(graph, state)
            logits: jax.Array = model(tokens)[0, -last:]
            return logits

        logits = np.asarray(jax.jit(run)(state, jnp.array([tokens], jnp.int32)), np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
