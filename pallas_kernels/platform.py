"""Decides which implementation of an operation runs, and for which chip. No other module looks at platforms.

By default jax's default backend decides: TPU kernels run on TPUs, GPU kernels on NVIDIA GPUs, and the plain
JAX references elsewhere. `using(…)` overrides that for a block of code, and the environment variable
`GPTOSS_JAX_KERNELS` overrides it for a process:

    auto            the backend decides
    reference       plain JAX everywhere
    tpu, gpu        that kernel, compiled for the attached devices or ahead of time for a described topology
    tpu-interpret   the TPU kernel, run as plain JAX on the CPU
    tpu-simulate    the TPU kernel in a simulator of TPU memories, DMAs and semaphores, which reports races
    gpu-interpret   the GPU kernel, run as plain JAX on the CPU

Each choice is logged once, at INFO, by the logger `pallas_kernels`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

import jax
import numpy as np

if TYPE_CHECKING:
    from jax.experimental.pallas import tpu as pltpu

Implementation = Literal["reference", "tpu", "gpu"]
Chip = Literal["v5e", "v5p", "v6e", "7x"]
Interpret: TypeAlias = "bool | pltpu.InterpretParams"
"""The `interpret` argument of `pallas_call`. False compiles the kernel, True runs it as plain JAX, and
parameters run it in the simulator.
"""

P = ParamSpec("P")
R = TypeVar("R")

CHIPS: tuple[Chip, ...] = ("v5e", "v5p", "v6e", "7x")
"""The supported TPU generations."""

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
    """The mode or the chip does not exist, or no kernel supports the device."""


class Setting(NamedTuple):
    """The arguments of `using`."""

    mode: str
    chip: Chip | None


class Choice(NamedTuple):
    """What an operation runs. `interpret` is passed to `pallas_call`; `chip` selects the block sizes."""

    implementation: Implementation
    interpret: Interpret
    chip: Chip


def _always(*_: object, **__: object) -> bool:
    return True


@dataclasses.dataclass(frozen=True)
class Kernel(Generic[R]):
    """A kernel of an operation.

    function: "module:name" of the function. It takes the operands and options of the reference, and also
        `interpret`, and on TPUs `chip`. It is imported when it first runs, so a CPU never imports Pallas.
    serves: takes the same operands and options. True: the kernel supports their sizes and their layout in
        memory. False: the reference runs instead.
    """

    function: str
    serves: Callable[..., bool] = _always

    @property
    def run(self) -> Callable[..., R]:
        """The function, imported now."""
        module, _, name = self.function.partition(":")
        function: Callable[..., R] = getattr(importlib.import_module(module), name)
        return function


@dataclasses.dataclass(frozen=True)
class Operation(Generic[P, R]):
    """An operation and its implementations.

    reference: the definition in plain JAX. It also runs where there is no kernel.
    tpu, gpu: the kernels. None: there is no kernel, because XLA compiles the reference just as well.
    """

    name: str
    reference: Callable[P, R]
    tpu: Kernel[R] | None = None
    gpu: Kernel[R] | None = None

    def __call__(self, *operands: P.args, **options: P.kwargs) -> R:
        """Runs the implementation that `choose` returns, through
        `call_once`; see there for static options.
        """
        choice = choose(self.name, ("reference", "tpu", "gpu"))
        kernel = {"tpu": self.tpu, "gpu": self.gpu}.get(choice.implementation)
        if kernel is None or not kernel.serves(*operands, **options):
            return call_once(self.reference, *operands, **options)
        target: dict[str, object] = {"interpret": choice.interpret}
        if choice.implementation == "tpu":
            target["chip"] = choice.chip
        return call_once(kernel.run, *operands, **options, **target)


# Part of jax's tracing context: a function that was traced under one setting is traced again under another.
_context = jax.make_user_context(default_value=None)


@contextmanager
def using(mode: str = "auto", chip: Chip | None = None) -> Iterator[None]:
    """Inside the `with` block, operations run (or are traced) in this mode and for this TPU generation.

    mode: one of `MODES`. chip: one of `CHIPS`; None takes the attached TPU's generation, or v5e without one.
    Raises PlatformError for a mode that is not one of `MODES` or a chip that is not one of `CHIPS`.
    """
    setting = Setting(_checked_mode(mode, "mode"), chip)
    if chip is not None and chip not in CHIPS:
        raise PlatformError(f"chip is {chip!r}: it must be one of {', '.join(CHIPS)}")
    with _context(setting):
        yield


def choose(operation: str, implementations: tuple[Implementation, ...]) -> Choice:
    """Returns which of `implementations` the operation runs under the current setting.

    In the mode `auto` the reference runs where the platform's kernel is not among them. Raises PlatformError
    if the setting names an implementation that is not among them, or if the attached TPU is not supported.
    """
    setting = _context.value or Setting(_checked_mode(_environment(), ENVIRONMENT_VARIABLE), None)
    name, _, suffix = setting.mode.partition("-")
    if name == "auto":
        name = {"tpu": "tpu", "gpu": "gpu", "cuda": "gpu"}.get(jax.default_backend(), "reference")
        if name not in implementations:
            name = "reference"
    if name not in implementations:
        raise PlatformError(f"{operation} has no {name} kernel: it has {', '.join(implementations)}")
    interpret: Interpret = suffix == "interpret"
    if suffix == "simulate":
        from jax.experimental.pallas import tpu as pltpu

        interpret = pltpu.InterpretParams(detect_races=True, out_of_bounds_reads="raise")
    chip = setting.chip or (_attached_chip() if name == "tpu" else "v5e")
    _log_choice(operation, name, suffix, chip if name == "tpu" else "")
    return Choice(name, interpret, chip)  # type: ignore[arg-type]


def call_once(function: Callable[..., R], /, *operands: object, **options: object) -> R:
    """Calls `function(*operands, **options)`, traced and lowered once for all equal calls in a program.

    A model calls an operation once per layer, and tracing a kernel takes about a second. So each operation is
    a jitted function: jax traces it once, and the compiler inlines it at each call. Calls are equal if
    shapes, dtypes and static options are. Operands are pytrees of arrays. Options that are not arrays are
    static and must be hashable.
    """
    static = tuple(name for name, value in options.items() if not isinstance(value, jax.Array | np.ndarray))
    return _jitted(function, static)(*operands, **options)


@functools.cache
def _jitted(function: Callable[..., R], static: tuple[str, ...]) -> Callable[..., R]:
    return jax.jit(function, static_argnames=static)


def _environment() -> str:
    return os.environ.get(ENVIRONMENT_VARIABLE, "auto")


def _checked_mode(mode: str, name: str) -> str:
    if mode not in MODES:
        raise PlatformError(f"{name} is {mode!r}: it must be one of {', '.join(MODES)}")
    return mode


@functools.cache
def _attached_chip() -> Chip:
    """The generation of the attached TPU. Without one: v5e, whose weight layout v5p and v6e share."""
    kind = jax.devices()[0].device_kind if jax.default_backend() == "tpu" else "TPU v5e"
    if kind not in _DEVICE_KINDS:
        raise PlatformError(
            f"this TPU is a {kind!r}: the kernels support {', '.join(CHIPS)}; "
            f"set {ENVIRONMENT_VARIABLE}=reference to run without kernels"
        )
    return _DEVICE_KINDS[kind]


@functools.cache
def _log_choice(operation: str, name: str, suffix: str, chip: str) -> None:
    details = (f" for {chip}" if chip else "") + (f" ({suffix})" if suffix else "")
    logger.info("%s: %s%s", operation, name, details)
