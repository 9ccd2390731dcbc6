"""All checks, in their order: what is cheap first, then engines, each freed before the next one is made."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import jax

from checkpoints import Checkpoint, open_checkpoint
from checkpoints.opening import TINY, find_checkpoint
from gptoss_jax.engine import Engine
from gptoss_jax.engine.options import EngineKeywords
from gptoss_jax.llm import LLM
from gptoss_jax.llm.loading import load_engine
from gptoss_jax.sizes import MeshShape
from gptoss_jax.verify import behaviour, environment, files, kernels, logits, speed, weights
from gptoss_jax.verify.prompts import prompts
from gptoss_jax.verify.rows import Check, Outcome, Row, perform, skipped
from gptoss_jax.vocabulary import load_encoding_for

Found = TypeVar("Found")

_QUICK_BYTES = 2 << 30
"""The largest checkpoint whose files and weights are read with --quick."""

_SMALL_ENGINE: EngineKeywords = {"slots": 4, "max_length": 1024}
"""The engines that logits are compared on."""

_COMPARED = "long"
"""The prompt that the first layers are compared on: it is longer than the published window."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is checked.

    checkpoint: a folder, or "tiny". dtype: "float32" or "bfloat16", what models compute in. mesh: how models
    are split; None chooses. engine: options of the engine that answers. quick: True leaves out reading
    weights of large checkpoints, and shortens the rest.
    """

    checkpoint: str
    dtype: str
    mesh: MeshShape | None = None
    engine: EngineKeywords = dataclasses.field(default_factory=EngineKeywords)
    quick: bool = False


Done = Callable[[Check], Row]
"""Does a check."""


def verify(settings: Settings, begins: Callable[[str], object] = lambda _: None) -> Iterator[Row]:
    """Yields each check's row when it is done; begins: is told the name of each check before.

    With several processes all of them run this, for the steps of the engines. The rows of the first count.

    Raises:
        CheckpointError: there is no such folder, or no checkpoint in it.
    """
    folder, layout, _ = find_checkpoint(settings.checkpoint)

    def done(check: Check) -> Row:
        begins(check.name)
        return perform(check)

    on_cpu = jax.default_backend() == "cpu"
    rounded = "float32" if on_cpu and settings.dtype == "float32" else "bfloat16"
    yield done(environment.check(settings.dtype))
    yield (described := done(files.description_check(settings.checkpoint)))
    most = _QUICK_BYTES if settings.quick else None
    yield done(files.hash_check(folder, converted=layout == "orbax", most_bytes=most))
    checkpoint = open_checkpoint(settings.checkpoint) if described.status == "passed" else None
    if checkpoint is not None:
        for check in (weights.numbers_check(checkpoint), weights.scales_check(checkpoint)):
            large = settings.quick and weights.bytes_of(checkpoint) > _QUICK_BYTES
            yield skipped(check, "weights of this size are not read with --quick") if large else done(check)
    yield done(logits.rotary_check())
    for check in kernels.checks(settings.dtype, small=on_cpu):
        yield done(check)
    yield done(logits.stored_check("float32", lambda: _stored("float32", "float32")))
    if rounded != "float32":
        yield done(
            logits.stored_check(f"{settings.dtype} as served", lambda: _stored(settings.dtype, rounded))
        )
    if checkpoint is not None:
        yield _first_layers(settings, checkpoint, rounded, done)
        yield from _whole(settings, checkpoint, done)


def _on_engine(make: Callable[[], Engine], use: Callable[[Engine], Found]) -> Found | None:
    """What `use` gives on an engine, which is freed then; None in processes that are not the first."""
    try:
        with make() as engine:
            if engine.is_leader:
                return use(engine)
            engine.follow()
            return None
    finally:
        gc.collect()


def _stored(dtype: str, rounded: str) -> Outcome:
    """Compares the embedded model, computed in `dtype`, with what is stored.

    rounded: what products are rounded to. In float32 they are not rounded on any device.
    """

    def make() -> Engine:
        return load_engine(TINY, dtype=dtype, **_SMALL_ENGINE)[0]

    exactly = jax.default_matmul_precision("highest") if rounded == "float32" else contextlib.nullcontext()
    with exactly:
        found = _on_engine(make, lambda engine: logits.compare_stored(engine, rounded))
    return found or Outcome(None, "the first process checks it")


def _first_layers(settings: Settings, checkpoint: Checkpoint, rounded: str, done: Done) -> Row:
    """Compares the first layers of a checkpoint with the plain model."""
    if _is_embedded(checkpoint):
        return skipped(
            logits.plain_check(0, lambda: Outcome(None, "")), "it is the embedded model: see there"
        )
    prompt = prompts(load_encoding_for(checkpoint))[_COMPARED]
    count = logits.layers_compared(checkpoint.config, quick=settings.quick)
    layers = checkpoint.first_layers(count)

    def make() -> Engine:
        return load_engine(layers, dtype=settings.dtype, mesh=settings.mesh, **_SMALL_ENGINE)[0]

    def run() -> Outcome:
        found = _on_engine(make, lambda engine: logits.complete(engine, [prompt], logits.FOLLOWING))
        if found is None:
            return Outcome(None, "the first process checks it")
        return logits.compare_plain(layers, prompt, found[0], rounded)

    return done(logits.plain_check(count, run))


def _is_embedded(checkpoint: Checkpoint) -> bool:
    return Path(checkpoint.path).resolve() == TINY.resolve()


def _whole(settings: Settings, checkpoint: Checkpoint, done: Done) -> Iterator[Row]:
    """Checks what an engine of the whole checkpoint does."""
    engine: Engine | None = None

    def start() -> Outcome:
        nonlocal engine
        engine = load_engine(checkpoint, dtype=settings.dtype, mesh=settings.mesh, **settings.engine)[0]
        return Outcome(True, str(engine.plan), "", {"slots": engine.slots, "max_length": engine.max_length})

    yield done(
        Check(
            "engine",
            "the checkpoint is loaded onto the devices, and the engine's memory fits",
            "the engine does not start: docs/engine.md has its options and what fits where",
            start,
        )
    )
    if engine is None:
        return
    with engine:
        if not engine.is_leader:
            engine.follow()
            return
        yield from checks_of(engine, checkpoint, settings, done)


def checks_of(engine: Engine, checkpoint: Checkpoint, settings: Settings, done: Done) -> Iterator[Row]:
    """The checks of what an engine does; it is closed afterwards."""
    vocabulary = checkpoint.config.vocabulary_size
    yield done(behaviour.repetition_check(engine, vocabulary))
    prompt, generated = (128, 64) if settings.quick else (512, 256)
    yield done(speed.check(engine, vocabulary, prompt, generated))
    with LLM.from_engine(engine, load_encoding_for(checkpoint)) as llm:
        for check in behaviour.checks(llm):
            yield done(check)
