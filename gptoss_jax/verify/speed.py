"""How fast the engine is, in a few seconds: prefill, decoding, time to the first token."""

from __future__ import annotations

import numpy as np

from gptoss_jax.bench.engine.measuring import burst, complete
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.verify.rows import Check, Outcome


def check(engine: Engine, vocabulary: int, prompt: int, generated: int) -> Check:
    """vocabulary: how many tokens there are. prompt, generated: tokens of each request, at most what fits."""
    return Check(
        "throughput",
        "tokens per second with random prompts, compiling not included; no bound",
        "the engine does not finish its requests",
        lambda: _throughput(engine, vocabulary, prompt, generated),
    )


def _throughput(engine: Engine, vocabulary: int, prompt: int, generated: int) -> Outcome:
    prompt = min(prompt, engine.max_length // 2)
    generated = min(generated, engine.max_length // 2 - 1)
    slots = engine.slots

    def requests(number: int, count: int, length: int, following: int) -> list[Request]:
        generator = np.random.default_rng([8, number])
        sampling = SamplingParams(max_tokens=following, min_tokens=following)
        return [
            Request(f"{number}.{index}", generator.integers(0, vocabulary, length).tolist(), sampling)
            for index in range(count)
        ]

    complete(engine, requests(0, 1, prompt, 1))  # compiles
    alone = complete(engine, requests(1, 1, prompt, 1))
    together = burst(engine, requests(2, slots, min(32, prompt), generated))
    rate = together.steady_tokens / together.steady_seconds
    first = float(np.median(together.first))
    return Outcome(
        True,
        f"decode {rate:,.0f} tokens/s with {slots} sequences ({1e3 * together.step_seconds:.3g} ms a step), "
        f"prefill {prompt / alone.seconds:,.0f} tokens/s, first token after {1e3 * alone.seconds:.3g} ms "
        f"({prompt} prompt tokens, alone)",
        "",
        {
            "decode_tokens_per_second": rate,
            "decode_step_seconds": together.step_seconds,
            "slots": slots,
            "prefill_tokens_per_second": prompt / alone.seconds,
            "first_token_seconds": alone.seconds,
            "prompt_tokens": prompt,
            "burst_first_token_seconds": first,
            "generated_tokens": generated,
        },
    )
