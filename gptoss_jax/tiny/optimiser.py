"""Muon for the matrices inside the layers, Adam for everything else."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

Parameters = dict[str, jax.Array]

MUON_MOMENTUM = 0.95
ADAM_MEAN_DECAY, ADAM_SQUARE_DECAY = 0.9, 0.98
WEIGHT_DECAY = 0.1
LARGEST_GRADIENT = 1.0


class Moments(NamedTuple):
    """Running averages of a gradient; `square` is empty for matrices under Muon."""

    mean: jax.Array
    square: jax.Array


def uses_muon(name: str) -> bool:
    """True for the matrices inside the layers; False for routers, embeddings and vectors."""
    return name.startswith("layers.") and name.endswith(".weight") and ".router." not in name


def initial_moments(parameters: Parameters) -> dict[str, Moments]:
    """The moments of a run's start: zeros."""
    return {
        name: Moments(jnp.zeros_like(value), jnp.zeros(0) if uses_muon(name) else jnp.zeros_like(value))
        for name, value in parameters.items()
    }


def orthogonalised(matrix: jax.Array) -> jax.Array:
    """[..., m, n] with singular values brought near 1: Newton–Schulz steps (Jordan et al., Muon, 2024)."""
    x = matrix / (jnp.linalg.norm(matrix, axis=(-2, -1), keepdims=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.swapaxes(-1, -2)
    for _ in range(5):
        square = x @ x.swapaxes(-1, -2)
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.swapaxes(-1, -2) if tall else x


def update(
    parameters: Parameters,
    moments: dict[str, Moments],
    gradients: Parameters,
    step: jax.Array,
    muon_rate: jax.Array,
    adam_rate: jax.Array,
) -> tuple[Parameters, dict[str, Moments], jax.Array]:
    """One step (counted from 1): new parameters, new moments, and the gradient's norm before clipping."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(gradient)) for gradient in gradients.values()))
    clip = jnp.minimum(1.0, LARGEST_GRADIENT / norm)
    new_parameters: Parameters = {}
    new_moments: dict[str, Moments] = {}
    for name, value in parameters.items():
        gradient = gradients[name] * clip
        if uses_muon(name):
            mean = MUON_MOMENTUM * moments[name].mean + gradient
            direction = orthogonalised(gradient + MUON_MOMENTUM * mean)
            rows, columns = value.shape[-2:]
            direction *= max(1.0, rows / columns) ** 0.5
            new_moments[name] = Moments(mean, moments[name].square)
            new_parameters[name] = value * (1 - muon_rate * WEIGHT_DECAY) - muon_rate * direction
        else:
            mean = ADAM_MEAN_DECAY * moments[name].mean + (1 - ADAM_MEAN_DECAY) * gradient
            square = ADAM_SQUARE_DECAY * moments[name].square + (1 - ADAM_SQUARE_DECAY) * jnp.square(gradient)
            corrected = mean / (1 - ADAM_MEAN_DECAY**step)
            direction = corrected / (jnp.sqrt(square / (1 - ADAM_SQUARE_DECAY**step)) + 1e-9)
            new_moments[name] = Moments(mean, square)
            new_parameters[name] = value - adam_rate * direction
    return new_parameters, new_moments, norm
