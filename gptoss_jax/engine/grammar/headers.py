"""Follows the headers of a completion under a `HeaderGuard`.

The device draws tokens without a mask, and the matcher checks them afterwards. While it allows them, it
computes no mask, and the device does not wait for the host. When it refuses a token, the device draws again
under a mask. In a header the host then checks each dispatch before it sends the next one, until the header is
complete.

Each message is matched by a fresh copy of one small llguidance grammar, which leaves out the content.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gptoss_jax.engine.grammar.compiler import LARK_OPTIONS, new_matcher
from gptoss_jax.engine.grammar.header_guard import HeaderGuard
from gptoss_jax.engine.grammar.matcher import reason_of
from gptoss_jax.engine.grammar.spec import GrammarError
from gptoss_jax.engine.grammar.vocabulary import Vocabulary, vocabulary_of
from harmony import HarmonyEncoding
from harmony.errors import shown

if TYPE_CHECKING:
    from llguidance import LLMatcher


@dataclasses.dataclass(frozen=True)
class CompiledHeaders:
    """A compiled `HeaderGuard`.

    initial: llguidance's matcher before the `<|start|>` of a message. Only its copies take tokens.
    closers: the tokens that end messages of some kind.
    enders: the tokens by which a model may try to end a message.
    """

    vocabulary: Vocabulary
    initial: LLMatcher
    closers: tuple[int, ...]
    enders: frozenset[int]


class HeaderMatcher:
    """Follows the messages of one completion. Not safe for several threads.

    Methods raise GrammarError, with the reason, if llguidance fails.
    """

    __slots__ = ("_closer", "_compiled", "_corrects", "_ll", "_ordinary", "_refused")

    def __init__(self, compiled: CompiledHeaders, prompt: Sequence[int]) -> None:
        """A matcher at the end of `prompt`, in a message of the assistant.

        Raises:
            GrammarError: the prompt ends elsewhere, or the guard does not allow the message.
        """
        self._compiled = compiled
        self._ordinary = compiled.vocabulary.ordinary
        self._ll: LLMatcher = compiled.initial.deep_copy()
        self._closer: int | None = None  # in content: the token that ends the message; None in a header
        self._corrects = False
        self._refused = -1  # the token that was refused last
        encoding = compiled.vocabulary.encoding
        begin = len(prompt) - 1
        while begin >= 0 and prompt[begin] != encoding.start:
            begin -= 1
        if begin < 0 or not self.force(prompt[begin:]):
            parts = (encoding.token_bytes(token) or b"?" for token in prompt[max(begin, 0) :])
            raise GrammarError(
                f"the prompt ends in {shown(b''.join(parts).decode(errors='replace'))}: with header_guard it "
                "must end in '<|start|>assistant', or in a message of the assistant that the guard allows"
            )

    @property
    def corrects(self) -> bool:
        """True if the next token must be drawn under `mask`, because another token was refused."""
        return self._corrects

    def take(self, token: int) -> bool:
        """Takes the next token. Returns False if the guard refuses it."""
        if self._closer is not None:
            if 0 <= token < self._ordinary:
                self._corrects = False
                return True
            if token == self._closer:
                self._closer = None
                self._corrects = False
                self._ll = self._compiled.initial.deep_copy()
                return True
        elif 0 <= token < self._compiled.vocabulary.rows and self._ll.try_consume_tokens([token]) == 1:
            if token == self._compiled.vocabulary.encoding.message:
                self._corrects = False
                closers = self._compiled.closers
                self._closer = next(closer for closer in closers if self._ll.validate_tokens([closer]))
            return True
        if self._ll.is_error():
            raise GrammarError(f"the headers cannot be followed: {reason_of(self._ll)}")
        self._corrects, self._refused = True, token
        return False

    def force(self, tokens: Sequence[int]) -> bool:
        """Takes tokens that the model does not draw. Returns False at the first that the guard refuses."""
        return all(map(self.take, tokens))

    def mask(self, banned: Collection[int] = ()) -> np.ndarray | None:
        """The mask of the next token, read-only, as in `Matcher.mask`; None unless `corrects`.

        If the model tried to end a message with the wrong token, the mask has only the right one. If that is
        among `banned`, the mask has all text too.
        """
        if not self._corrects:
            return None
        vocabulary = self._compiled.vocabulary
        if self._closer is None:
            mask = np.zeros(vocabulary.words, np.uint32)
            self._ll.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            if self._ll.is_error():
                raise GrammarError(f"the headers cannot be followed: {reason_of(self._ll)}")
            return mask
        if self._refused in self._compiled.enders and self._closer not in banned:
            return vocabulary.only[self._closer]
        return vocabulary.text_until[self._closer]


@functools.lru_cache(maxsize=256)
def compile_headers(guard: HeaderGuard, encoding: HarmonyEncoding, rows: int) -> CompiledHeaders:
    """Compiles a guard for an encoding and a model's number of vocabulary rows, and keeps the result.

    Raises:
        GrammarError: llguidance refuses the guard, for example because it has too many recipients.
    """
    vocabulary = vocabulary_of(encoding, rows)
    initial = new_matcher([{"name": "message", "lark_grammar": _message(guard)}], vocabulary)
    if initial.is_error():
        raise GrammarError(f"header_guard: {reason_of(initial)}")
    closers = (encoding.end, encoding.return_, encoding.call)
    enders = frozenset((*closers, encoding.end_of_text, encoding.start, encoding.channel))
    return CompiledHeaders(vocabulary, initial, closers, enders)


def _message(guard: HeaderGuard) -> str:
    """The grammar of one message in Lark, without its content."""
    from harmony.recovered_header import CONTENT_TYPES

    def either(words: Sequence[str]) -> str:
        return "(" + " | ".join(json.dumps(word, ensure_ascii=False) for word in words) + ")"

    # The parser reads only these as a content type without `<|constrain|>`; another word may be the answer.
    bare = [f" {word}" for word in guard.content_types if word in CONTENT_TYPES]
    types = [either(bare)] if bare else []
    if guard.content_types:
        types.append(f'" "? <|constrain|> {either(guard.content_types)}')
    content_type = f"({' | '.join(types)})?" if types else ""
    rules = [f'final: <|channel|> "final" {content_type} <|message|> <|return|>']
    if others := [channel for channel in guard.channels if channel != "final"]:
        rules.append(f"other: <|channel|> {either(others)} <|message|> <|end|>")
    if guard.recipients:
        channel = f"<|channel|> {either(guard.call_channels)}"
        rules.append(f'TO: " to=" {either(guard.recipients)}')
        rules.append(f"call: ({channel} TO | TO {channel}) {content_type} <|message|> <|call|>")
    kinds = " | ".join(rule.split(":")[0] for rule in rules if not rule.startswith("TO"))
    return "\n".join([LARK_OPTIONS, f'start: <|start|> "assistant" ({kinds})', *rules])
