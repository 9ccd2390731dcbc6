"""Which implementation of an operation runs, and on which chip: the one place that knows platforms.

By default the platform of jax's default backend decides: TPU kernels on TPUs, GPU kernels on NVIDIA GPUs, the
plain JAX references elsewhere. `using(…)` overrides that for a block of code, the environment variable
`GPTOSS_JAX_KERNELS` for a process:

    auto            by platform
    reference       plain JAX everywhere
    tpu, gpu        that kernel, compiled for the devices at hand, or ahead of time for a described topology
    tpu-interpret   the TPU kernel as plain JAX on the CPU
    tpu-simulate    the TPU kernel in the simulator of TPU memories, DMAs and semaphores, which reports races
    gpu-interpret   the GPU kernel as plain JAX on the CPU

Each choice is logged once, at INFO, by the logger `pallas_kernels`.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

Implementation = Literal["reference", "tpu", "gpu"]
Chip = Literal["v5e", "v5p", "v6e", "7x"]

CHIPS: tuple[Chip, ...] = ("v5e", "v5p", "v6e", "7x")
"""The TPU generations that the kernels are made for."""

MODES = ("auto", "reference", "tpu", "gpu", "tpu-interpret", "tpu-simulate", "gpu-interpret")
ENVIRONMENT_VARIABLE = "GPTOSS_JAX_KERNELS"

_DEVICE_KINDS: dict[str, Chip] = {
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "7x",
    "TPU v7x": "7x",
}

logger = logging.getLogger("pallas_kernels")


class PlatformError(ValueError):
    """A setting that does not exist, or a device that the kernels are not made for."""


class Setting(NamedTuple):
    """What `using` was called with."""

    mode: str
    chip: Chip | None


class Choice(NamedTuple):
    """What an operation shall run: `interpret` goes to `pallas_call`, `chip` to the tables of block sizes."""

    implementation: Implementation
    interpret: Any
    chip: Chip


# A context of jax, so that a function traced under one setting is traced again under another.
_context = jax.make_user_context(default_value=None)


@contextmanager
def using(mode: str = "auto", chip: Chip | None = None) -> Iterator[None]:
    """Runs, or traces for compilation, what is inside with kernels of that mode and for that TPU generation.

    Raises PlatformError for a mode that is not one of `MODES` or a chip that is not one of `CHIPS`.
    """
    setting = Setting(_checked_mode(mode, "mode"), chip)
    if chip is not None and chip not in CHIPS:
        raise PlatformError(f"chip is {chip!r}: it must be one of {', '.join(CHIPS)}")
    with _context(setting):
        yield


def choose(operation: str, implementations: tuple[Implementation, ...]) -> Choice:
    """The implementation of `operation` to run now, one of `implementations`.

    Where the platform's own kernel does not exist, the reference runs. Raises PlatformError if the setting
    asks for a kernel by name that the operation does not have, or the TPU is one without kernels.
    """
    setting = _context.value or Setting(_checked_mode(_environment(), ENVIRONMENT_VARIABLE), None)
    name, _, suffix = setting.mode.partition("-")
    if name == "auto":
        name = {"tpu": "tpu", "gpu": "gpu", "cuda": "gpu"}.get(jax.default_backend(), "reference")
        if name not in implementations:
            name = "reference"
    if name not in implementations:
        raise PlatformError(f"{operation} has no {name} kernel: it has {', '.join(implementations)}")
    interpret: Any = suffix == "interpret"
    if suffix == "simulate":
        interpret = pltpu.InterpretParams(detect_races=True, out_of_bounds_reads="raise")
    chip = setting.chip or (_attached_chip() if name == "tpu" else "v5e")
    _say(operation, name, suffix, chip if name == "tpu" else "")
    return Choice(name, interpret, chip)  # type: ignore[arg-type]


def call_once(function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
    """`function(*operands, **options)`, traced and lowered once for all like calls in a program.

    A model calls an operation once a layer, and tracing a kernel takes a second: so each is a jitted function
    of its own, which jax traces once and the compiler puts in place of the calls. Options that are not arrays
    are static and have to be hashable.
    """
    static = tuple(name for name, value in options.items() if not isinstance(value, jax.Array | np.ndarray))
    return _jitted(function, static)(*operands, **options)


@functools.cache
def _jitted(function: Callable[..., Any], static: tuple[str, ...]) -> Callable[..., Any]:
    return jax.jit(function, static_argnames=static)


def _environment() -> str:
    return os.environ.get(ENVIRONMENT_VARIABLE, "auto")


def _checked_mode(mode: str, name: str) -> str:
    if mode not in MODES:
        raise PlatformError(f"{name} is {mode!r}: it must be one of {', '.join(MODES)}")
    return mode


@functools.cache
def _attached_chip() -> Chip:
    """The generation of the TPU at hand; v5e, whose layout v5p and v6e share, where there is none."""
    kind = jax.devices()[0].device_kind if jax.default_backend() == "tpu" else "TPU v5e"
    if kind not in _DEVICE_KINDS:
        raise PlatformError(
            f"this TPU is a {kind!r}: the kernels are made for {', '.join(CHIPS)}; "
            f"{ENVIRONMENT_VARIABLE}=reference runs without them"
        )
    return _DEVICE_KINDS[kind]


@functools.cache
def _say(operation: str, name: str, suffix: str, chip: str) -> None:
    details = (f" for {chip}" if chip else "") + (f" ({suffix})" if suffix else "")
    logger.info("%s: %s%s", operation, name, details)
