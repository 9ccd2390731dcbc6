"""The sizes of the benchmark: small ones for a CPU, and those of the published figures for accelerators."""

from __future__ import annotations

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Settings:
    """The sizes of all parts.

    rounds: timings of each side. slots: slots of the engine in all parts except `throughput`, which measures
    one engine for each number in `sequences`. max_length, decode_steps: options of the engines. prompt,
    generated: tokens per sequence. dispatches: dispatches per timed stretch of steady decoding. requests:
    requests per slot in `batching`; one in five generates `long` tokens, the others `short`. prefix: tokens
    of a common prefix. prefix_requests: requests per slot that share it. copied: bytes whose copy measures
    the bandwidth. questions: prompts of the embedded checkpoint for comparing 8-bit keys and values, at
    `places` tokens each.
    """

    rounds: int = 3
    slots: int = 64
    sequences: tuple[int, ...] = (1, 8, 64, 256)
    max_length: int = 2048
    decode_steps: int = 16
    prompt: int = 128
    generated: int = 256
    dispatches: int = 16
    requests: int = 4
    short: int = 32
    long: int = 256
    prefix: int = 512
    prefix_requests: int = 2
    copied: int = 1 << 32
    questions: int = 16
    places: int = 16


ON_CPU = Settings(
    slots=8,
    sequences=(1, 4, 16),
    max_length=320,
    prompt=32,
    generated=128,
    dispatches=6,
    short=16,
    long=128,
    prefix=256,
    copied=1 << 27,
    questions=8,
    places=8,
)


def settings_here() -> Settings:
    """The defaults for jax's default backend."""
    return ON_CPU if jax.default_backend() == "cpu" else Settings()
