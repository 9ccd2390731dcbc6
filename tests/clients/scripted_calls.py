"""A model behind the engine's interface that writes calls in every form in which gpt-oss writes them."""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

from gptoss_jax.engine.grammar.headers import HeaderMatcher, compile_headers
from gptoss_jax.engine.request import Request
from harmony import HarmonyEncoding
from tests.llm.fake_engine import Script

PADDING = 65
"""Rows that an embedding has beyond its vocabulary."""


@dataclasses.dataclass(frozen=True)
class Form:
    """How a call is written.

    recipient_first: the recipient stands behind the role, else behind the channel.
    content_type: what stands before `<|message|>`.
    channel: the call's own. preamble: text for the user precedes it. end: the token behind the arguments.
    """

    recipient_first: bool
    content_type: str
    channel: str
    preamble: bool
    end: str

    def header(self, function: str) -> str:
        """The header of a call, behind `<|start|>assistant`."""
        recipient, kind = f" to=functions.{function}", self.content_type
        if self.recipient_first:
            return f"{recipient}<|channel|>{self.channel}{kind}<|message|>"
        return f"<|channel|>{self.channel}{recipient}{kind}<|message|>"


FORMS = [
    Form(*parts)
    for parts in itertools.product(
        (False, True),
        (" <|constrain|>json", " json", ""),
        ("commentary", "analysis"),
        (False, True),
        ("<|call|>", "<|return|>"),
    )
]
THOUGHT = "The function knows."


class CallingModel:
    """Scripts of completions: the call that a prompt asks for; when its result is there, an answer with it.

    `case_of` gives the function and the arguments that a prompt asks for. `form_of` gives the form of the
    call; without it, it is the next one of `forms` each time that the same prompt comes. The header guard of
    a request must allow all that is said, but that a call ends by `<|return|>`: under a guard it cannot.
    """

    def __init__(
        self,
        encoding: HarmonyEncoding,
        case_of: Callable[[str], tuple[str, str]],
        form_of: Callable[[str], Form] | None = None,
        forms: Sequence[Form] = FORMS,
    ) -> None:
        self._encoding = encoding
        self._case_of = case_of
        self._form_of = form_of or self._next_form
        self._forms = forms
        self._seen: Counter[str] = Counter()
        self.written: Counter[Form] = Counter()

    def __call__(self, request: Request, sample: int) -> Script:
        prompt = self._encoding.decode(request.prompt)
        function, arguments = self._case_of(prompt)
        result = f"<|start|>functions.{function} to=assistant<|channel|>commentary<|message|>"
        if result in prompt:
            output = prompt.split(result)[-1].split("<|end|>")[0]
            tokens = [*self._thought(), *self._special("<|channel|>final<|message|>")]
            tokens += [*self._text(f"It says {output}"), *self._special("<|return|>")]
        else:
            tokens = self._call(self._form_of(prompt), function, arguments)
        self._check_headers(request, tokens)
        return Script(tokens)

    def _call(self, form: Form, function: str, arguments: str) -> list[int]:
        self.written[form] += 1
        tokens = self._thought()
        if form.preamble:
            tokens += self._special("<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant")
        tokens += self._special(form.header(function))
        return [*tokens, *self._text(arguments), *self._special(form.end)]

    def _thought(self) -> list[int]:
        return self._special(f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant")

    def _text(self, text: str) -> list[int]:
        return self._encoding.encode(text, disallowed_special=())

    def _special(self, text: str) -> list[int]:
        return self._encoding.encode(text, allowed_special="all")

    def _next_form(self, prompt: str) -> Form:
        self._seen[prompt] += 1
        return self._forms[(zlib.crc32(prompt.encode()) + self._seen[prompt]) % len(self._forms)]

    def _check_headers(self, request: Request, tokens: list[int]) -> None:
        guard = request.sampling.header_guard
        assert guard is not None
        compiled = compile_headers(guard, self._encoding, self._encoding.size + PADDING)
        matcher = HeaderMatcher(compiled, request.prompt)
        for index, token in enumerate(tokens[:-1]):
            assert matcher.take(token), self._encoding.decode(tokens[: index + 1])
