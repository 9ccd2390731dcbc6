"""Faults that are put into a served model's parameters: what a wrong loader or kernel would compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
from flax import nnx

from gptoss_jax.engine import Engine
from gptoss_jax.engine.scheduler import Scheduler

Fault = Callable[[str, jax.Array], jax.Array]
"""A parameter's name and its array → the array that takes its place."""


def _pairs(name: str, array: jax.Array) -> jax.Array:
    """Queries and keys as if RoPE turned neighbouring dimensions, and not those half a head apart."""
    if not name.endswith(("query.weight", "key.weight", "query.bias", "key.bias")):
        return array
    heads = array.reshape(-1, 2, 16, *array.shape[1:])  # the embedded model's heads have 32 dimensions
    return heads.swapaxes(1, 2).reshape(array.shape)


def only(ending: str, change: Callable[[jax.Array], jax.Array], layers: str = "layers.") -> Fault:
    """Changes the parameters whose names end so, in the layers whose names begin so."""

    def fault(name: str, array: jax.Array) -> jax.Array:
        return change(array) if name.startswith(layers) and name.endswith(ending) else array

    return fault


FAULTS: dict[str, Fault] = {
    "a transposed weight": only("attention.output.weight", jnp.transpose),
    "a transposed weight of one layer": only("attention.output.weight", jnp.transpose, "layers.3."),
    "gate and up swapped": only("gate_up.blocks", lambda blocks: blocks[:, ::-1]),
    "the sign of a projection flipped": only("down.blocks", lambda blocks: blocks ^ 0x88, "layers.2."),
    "nibbles swapped": only("down.blocks", lambda blocks: blocks >> 4 | blocks << 4),
    "scales off by one": only("down.scales", lambda scales: scales + 1, "layers.1."),
    "sinks left out": only("sinks", lambda sinks: jnp.full_like(sinks, -1e30)),
    "sinks of the wrong heads": only("sinks", lambda sinks: sinks[::-1]),
    "a bias left out": only("router.bias", jnp.zeros_like, "layers.1."),
    "rotary pairs of neighbours": _pairs,
}


@contextmanager
def injected(engine: Engine, fault: Fault) -> Iterator[None]:
    """The engine with a fault, and an empty prefix cache before and after; compiled programs stay."""
    steps = engine._runner.steps
    right = steps.parameters
    forget_prefixes(engine)
    leaves = nnx.to_flat_state(right)
    changed = [
        (path, leaf.replace(fault(".".join(map(str, path)), leaf.get_value()))) for path, leaf in leaves
    ]
    steps.parameters = nnx.from_flat_state(changed)
    try:
        yield
    finally:
        steps.parameters = right
        forget_prefixes(engine)


def forget_prefixes(engine: Engine) -> None:
    """Empties the prefix cache of an idle engine."""
    engine._scheduler = Scheduler(engine._layout, 1)
