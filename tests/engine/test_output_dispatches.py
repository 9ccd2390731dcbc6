"""A completion under any limits is the same, and keeps to them, however its tokens come in dispatches."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.engine.channels import Channels
from gptoss_jax.engine.output_processor import OutputProcessor
from gptoss_jax.engine.request import ChannelLimit
from tests.engine.processors import MODEL_STOPS, Digits, allows, encode, encoding, make_processor, words


class Device:
    """Draws tokens as the engine's device does: the same ones at the same place of the same tokens, limits
    and bans; what is banned makes room for others before the likeliest are kept, and the mask comes last."""

    def __init__(self, seed: int):
        self.seed = seed
        specials = encode("<|channel|><|message|><|end|><|start|><|return|><|call|>")
        texts = encode("assistant word<|end|>0<|end|>1<|end|>2")
        self.names = encode("analysis") + encode("commentary") + encode("final")
        self.alphabet = sorted({*specials, *texts, *self.names, *encode(" to=f")})

    def draw(self, tokens: list[int], banned, mask) -> int:
        chance = random.Random(f"{self.seed} {len(tokens)}")
        weights = {token: chance.random() for token in self.alphabet}
        last = tokens[-1] if tokens else None
        if last == encoding().channel:
            for name in self.names:
                weights[name] += 2
        elif last in self.names:
            weights[encoding().message] += 2
        elif last in (None, encoding().end, encoding().start):
            weights[encoding().channel] += 2
        else:
            weights[words(1)[0]] += 0.9
        ranked = sorted((token for token in self.alphabet if token not in banned), key=weights.get)[::-1]
        likely = ranked[: chance.randint(1, 4)]
        if mask is None:
            return max(likely, key=lambda token: (weights[token] * 7) % 1)
        for pool in (likely, ranked, self.alphabet):
            allowed = [token for token in pool if allows(mask, token)]
            if allowed:
                return max(allowed, key=lambda token: (weights[token] * 7) % 1)
        raise AssertionError("the mask allows nothing that the device knows")


def generate(processor: OutputProcessor, device: Device, steps, stops: frozenset[int]):
    """The engine's protocol: up to `next(steps)` tokens a dispatch, one dispatch ahead of the host."""
    tokens: list[int] = []
    flights: list[list[int]] = []
    ahead: list[int] = []  # as the device has them
    changed, granted, stopped, verified = True, 0, False, True
    while True:
        if changed:
            assert not flights
            ahead, granted, stopped, changed = list(tokens), processor.allowance(), False, False
            banned, until = processor.ban()
        mask = processor.mask()
        drawn: list[int] = []
        size = next(steps)
        while len(drawn) < size and granted > 0 and not stopped:
            now = banned if len(ahead) < until else ()
            token = device.draw(ahead, now, mask if not drawn else None)
            ahead.append(token)
            drawn.append(token)
            granted -= 1
            stopped = token in stops
        if drawn:
            flights.append(drawn)
        assert verified or not processor.verifies, "what was sent ahead is looked at too late"
        verified = processor.verifies
        while len(flights) > (1 if drawn and not verified else 0) and not changed:
            chunk = flights.pop(0)
            processed = processor.process(chunk)
            tokens += chunk[: processed.accepted]
            if processed.finish:
                return tokens, processed.finish, processed.stop
            if processed.forced or processed.accepted < len(chunk):
                assert len(ahead) - len(tokens) <= len(chunk), "the rings cannot be taken back so far"
                tokens += processed.forced
                flights.clear()
                changed = True
            elif processor.verifies or (not flights and (granted <= 0 or stopped)):
                changed = True


LIMITS = st.one_of(
    st.none(),
    st.builds(
        lambda least, more: ChannelLimit(least, None if more is None else max(1, least + more)),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
)


@st.composite
def asked(draw) -> dict:
    limits = {name: draw(LIMITS) for name in ("analysis", "commentary", "final")}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    budget = draw(st.one_of(st.none(), st.integers(1, 8)))
    if budget is not None and "analysis" in limits:
        budget = max(budget, limits["analysis"].min, 1)
    return {
        "channel_limits": limits,
        "reasoning_budget": budget,
        "min_tokens": draw(st.sampled_from([0, 0, 3, 12])),
        "max_tokens": draw(st.integers(1, 60)),
        "stop": draw(st.sampled_from([(), (), ("word word",), ("d1", "2 w")])),
        "prompt": draw(
            st.sampled_from(
                ["<|start|>assistant", "<|start|>assistant<|channel|>analysis<|message|> word", "word"]
            )
        ),
    }


def contents(prompt: str, tokens: list[int]) -> list[tuple[str | None, int, bool]]:
    """(channel, content tokens, whether it was ended) of each message, or of plain text."""
    cursor = Channels(encoding(), encode(prompt))
    found, count = [], 0
    for token in tokens:
        opened = (cursor.message, cursor.is_plain)
        channel, is_open = cursor.channel, cursor.message is not None or cursor.is_plain
        is_content = cursor.take(token)
        if is_open and (cursor.message, cursor.is_plain) != opened:
            found.append((channel, count, True))
            count = 0
        count += is_content
    return [*found, (cursor.channel, count, False)]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(asked=asked(), grammar=st.booleans(), seed=st.integers(0, 10**6), data=st.data())
def test_the_completion_is_the_same_however_its_tokens_come_in_dispatches(asked, grammar, seed, data):
    if grammar:
        asked = {**asked, "prompt": "<|start|>assistant", "stop": ()}
    stops = frozenset(encode("".join(MODEL_STOPS)))

    def run(steps):
        processor = make_processor(**asked, matcher=Digits() if grammar else None)
        return (*generate(processor, Device(seed), steps, stops), processor)

    def one_by_one():
        while True:
            yield 1

    def drawn_sizes():
        while True:
            yield data.draw(st.sampled_from([1, 2, 4, 16]))

    tokens, finish, stop, _ = run(one_by_one())
    again, *outcome, processor = run(drawn_sizes())
    assert (again, outcome) == (tokens, [finish, stop])

    # What was asked holds.
    assert len(tokens) <= asked["max_tokens"]
    assert finish == "stop" or finish == "length"
    whole = grammar and processor.grammar_complete
    if tokens and tokens[-1] in stops:
        assert finish == "stop"
        assert len(tokens) > asked["min_tokens"] or whole
    found = contents(asked["prompt"], tokens)
    for name in ("analysis", "commentary", "final"):
        limit = asked["channel_limits"].get(name, ChannelLimit())
        counts = np.cumsum([count if channel == name else 0 for channel, count, _ in found])
        most = limit.max
        if name == "analysis" and asked["reasoning_budget"]:
            most = min(asked["reasoning_budget"], most or 10**9)
        total = counts[-1] if len(found) else 0
        assert most is None or total <= most
        for so_far, (channel, _, ended) in zip(counts, found, strict=True):
            if channel == name and ended and not whole:
                assert so_far >= limit.min
    text = encoding().decode(tokens)
    if grammar and finish == "stop":
        assert re.fullmatch(r"(.*assistant)?<\|channel\|>final<\|message\|>[0-2]{3}<\|return\|>", text)
