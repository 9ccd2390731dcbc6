"""What the tests of `OutputProcessor` share: texts as tokens, a processor, and a grammar of their own."""

import functools
import re

import numpy as np

from gptoss_jax.engine.output_processor import OutputProcessor
from gptoss_jax.engine.request import Request, RequestError, SamplingParams
from harmony import HarmonyEncodingName, load_harmony_encoding

TO_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
MODEL_STOPS = ("<|return|>", "<|call|>", "<|endoftext|>")


@functools.cache
def encoding():
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def encode(text: str) -> list[int]:
    return encoding().encode(text, allowed_special="all")


def words(count: int) -> list[int]:
    """So many tokens of content."""
    tokens = encode(" word" * count)
    assert len(tokens) == count
    return tokens


def make_processor(
    *,
    prompt: str = "<|start|>user<|message|>Hi<|end|><|start|>assistant",
    max_tokens: int = 1000,
    matcher=None,
    headers=None,
    **sampling,
) -> OutputProcessor:
    tokens = encode(prompt)
    return OutputProcessor(
        Request("r", tokens, SamplingParams(**sampling)),
        0,
        encoding=encoding(),
        stop_tokens=frozenset(encode("".join(MODEL_STOPS))),
        max_tokens=max_tokens,
        matcher=matcher,
        headers=headers,
        prompt=tokens,
    )


HEAD = "<|channel|>analysis<|message|>"
TAIL = "<|channel|>final<|message|>"


class Digits:
    """A matcher: analysis of any text, which may be left out, then `final` with three digits."""

    def __init__(self, closes: bool = True, patience: int = 10**9):
        self.text = ""
        self.closes = closes
        self.patience = patience

    @staticmethod
    @functools.cache
    def vocabulary() -> list[tuple[int, str]]:
        tokens = encode(f"{HEAD}{TO_FINAL} word<|return|><|call|>0<|end|>1<|end|>2")
        return [(token, encoding().token_bytes(token).decode()) for token in sorted(set(tokens))]

    @staticmethod
    def leads_on(text: str) -> bool:
        """Whether the text is the beginning of what is allowed."""
        free = re.match(re.escape(HEAD) + "[^<|>]*", text)
        rest, fixed = (text[free.end() :], TO_FINAL) if free else (text, TAIL)
        if HEAD.startswith(text) or fixed.startswith(rest):
            return True
        digits = rest.removeprefix(fixed)
        return digits != rest and bool(re.fullmatch(r"[0-2]{1,3}|[0-2]{3}<\|return\|>", digits))

    def allowed(self) -> set[int]:
        return {token for token, text in self.vocabulary() if self.leads_on(self.text + text)}

    @property
    def complete(self) -> bool:
        return not self.allowed() - set(encode("<|return|>"))

    def accept(self, tokens) -> int:
        for count, token in enumerate(tokens):
            if token not in self.allowed():
                return count
            self.patience -= 1
            if self.patience < 0:
                raise RequestError("the grammar cannot be followed")
            self.text += encoding().token_bytes(token).decode()
        return len(tokens)

    def mask(self) -> np.ndarray:
        mask = np.zeros(-(-encoding().size // 32), np.uint32)
        for token in self.allowed():
            mask[token // 32] |= np.uint32(1 << token % 32)
        return mask

    def force(self, tokens) -> bool:
        return self.accept(tokens) == len(tokens)

    def close_reasoning(self) -> list[int] | None:
        return encode(TO_FINAL) if self.closes else None


def allows(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)
