"""Training the tiny model: deterministic by seed and step, stoppable at any moment, resumable."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints.config import ModelConfig
from gptoss_jax.tiny import optimiser
from gptoss_jax.tiny.forward import hidden_states, model_with
from gptoss_jax.tiny.initialisation import float_model, initial_parameters
from gptoss_jax.tiny.optimiser import Moments, Parameters
from gptoss_jax.tiny.packing import Batch, draw_batch
from harmony import HarmonyEncoding

CONFIG = ModelConfig(
    num_layers=4,
    vocabulary_size=2048,
    hidden_size=128,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_size=32,
    num_experts=8,
    experts_per_token=2,
    sliding_window=64,
    context_length=2048,
)
"""The architecture of gpt-oss at toy size; every constant that is not a size is as published."""

BALANCE_WEIGHT = 0.01
"""Weight of the routing's imbalance in the loss."""
SAVE_EVERY = 200
LOG_EVERY = 50


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of one run. Together with the code they decide every number of the result."""

    steps: int = 4400
    rows: int = 10
    length: int = 448
    seed: int = 1
    muon_rate: float = 0.012
    adam_rate: float = 0.004
    warmup_steps: int = 60
    decay_share: float = 0.8
    """Fraction of the steps, at the end of the run, over which both rates fall linearly to 0."""
    quantised_share: float = 0.15
    """Fraction of the steps, at the end of the run, in which expert weights are rounded to MXFP4."""

    def rate_factor(self, step: int) -> float:
        """What both learning rates are multiplied by at `step`, counted from 0."""
        left = (self.steps - step) / (self.steps * self.decay_share)
        return min(1.0, (step + 1) / self.warmup_steps, left)

    def quantised(self, step: int) -> bool:
        """True if expert weights are rounded to MXFP4 at `step`, counted from 0."""
        return step >= self.steps * (1 - self.quantised_share)


@dataclasses.dataclass(frozen=True)
class State:
    """A run after `step` steps and `seconds` of training."""

    step: int
    seconds: float
    parameters: Parameters
    moments: dict[str, Moments]

    def save(self, path: Path) -> None:
        """Writes `path` atomically: a run that is killed leaves the old file or the new one."""
        arrays: dict[str, Any] = {"step": np.int64(self.step), "seconds": np.float64(self.seconds)}
        for name, value in self.parameters.items():
            arrays[f"parameter/{name}"] = np.asarray(value)
            arrays[f"mean/{name}"] = np.asarray(self.moments[name].mean)
            arrays[f"square/{name}"] = np.asarray(self.moments[name].square)
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **arrays)
        os.replace(partial, path)

    @classmethod
    def restore(cls, path: Path) -> State:
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            names = [key.removeprefix("parameter/") for key in arrays if key.startswith("parameter/")]
            parameters = {name: jnp.asarray(arrays[f"parameter/{name}"]) for name in names}
            moments = {
                name: Moments(jnp.asarray(arrays[f"mean/{name}"]), jnp.asarray(arrays[f"square/{name}"]))
                for name in names
            }
            return cls(int(arrays["step"]), float(arrays["seconds"]), parameters, moments)


def loss(
    parameters: Parameters, batch: Batch, *, config: ModelConfig, quantised: bool
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mean cross entropy over trained tokens plus the weighted imbalance, and the figures for the log."""
    graph, _ = float_model(config)
    model = model_with(graph, parameters)
    hidden, imbalance = hidden_states(
        model, *map(jnp.asarray, (batch.tokens, batch.positions, batch.segments)), quantised=quantised
    )
    logits = model.unembedding(hidden.reshape(-1, config.hidden_size)[batch.predictors])
    target_logits = jnp.take_along_axis(logits, batch.targets[:, None], axis=-1)[:, 0]
    count = batch.weights.sum()
    entropy = ((jax.nn.logsumexp(logits, axis=-1) - target_logits) * batch.weights).sum() / count
    accuracy = ((target_logits >= logits.max(axis=-1)) * batch.weights).sum() / count
    figures = {"loss": entropy, "accuracy": accuracy, "imbalance": imbalance}
    return entropy + BALANCE_WEIGHT * imbalance, figures


@functools.partial(jax.jit, static_argnames=("config", "quantised"), donate_argnums=(0, 1))
def train_step(
    parameters: Parameters,
    moments: dict[str, Moments],
    batch: Batch,
    step: jax.Array,
    muon_rate: jax.Array,
    adam_rate: jax.Array,
    *,
    config: ModelConfig,
    quantised: bool,
) -> tuple[Parameters, dict[str, Moments], dict[str, jax.Array]]:
    """Runs step number `step`, counted from 1: new parameters, new moments, and the figures for the log."""
    gradients, figures = jax.grad(loss, has_aux=True)(parameters, batch, config=config, quantised=quantised)
    parameters, moments, norm = optimiser.update(parameters, moments, gradients, step, muon_rate, adam_rate)
    return parameters, moments, {**figures, "gradient": norm}


def _prefetched(encoding: HarmonyEncoding, recipe: Recipe, start: int) -> Iterator[Batch]:
    """The batches from step `start` on, each drawn while the one before is trained on."""
    draw = functools.partial(draw_batch, encoding, recipe.seed, rows=recipe.rows, length=recipe.length)
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
        following = executor.submit(draw, step=start)
        for step in range(start, recipe.steps):
            batch = following.result()
            following = executor.submit(draw, step=step + 1)
            yield batch


def train(
    encoding: HarmonyEncoding,
    vocabulary: list[bytes],
    recipe: Recipe,
    folder: Path,
    config: ModelConfig = CONFIG,
) -> State:
    """Trains from scratch, or continues from `folder/state.npz` if it exists. Logs to `folder/log.jsonl`.

    `vocabulary`: the bytes of the ordinary tokens of `encoding`, by id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "state.npz"
    if saved.exists():
        state = State.restore(saved)
    else:
        parameters = initial_parameters(config, vocabulary, recipe.seed)
        state = State(0, 0.0, parameters, optimiser.initial_moments(parameters))
    before = state.seconds
    started = time.monotonic()
    window: list[dict[str, jax.Array]] = []
    with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
        for step, batch in enumerate(_prefetched(encoding, recipe, state.step), state.step):
            factor = recipe.rate_factor(step)
            parameters, moments, figures = train_step(
                state.parameters,
                state.moments,
                batch,
                jnp.float32(step + 1),
                jnp.float32(factor * recipe.muon_rate),
                jnp.float32(factor * recipe.adam_rate),
                config=config,
                quantised=recipe.quantised(step),
            )
            figures["loss"].block_until_ready()
            seconds = before + time.monotonic() - started
            state = State(step + 1, seconds, parameters, moments)
            window.append(figures)
            if state.step % LOG_EVERY == 0 or state.step == recipe.steps:
                means = {key: round(float(np.mean([f[key] for f in window])), 4) for key in window[0]}
                line = json.dumps({"step": state.step, "minutes": round(seconds / 60, 2), **means})
                log.write(line + "\n")
                log.flush()
                print(line, flush=True)
                window.clear()
            if state.step % SAVE_EVERY == 0 or state.step == recipe.steps:
                state.save(saved)
    return state
