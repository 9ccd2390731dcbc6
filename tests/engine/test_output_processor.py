"""What the host makes of drawn tokens: where a completion ends, what is forced, what is drawn again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.engine.output_processor import Outcome, OutputProcessor
from gptoss_jax.engine.request import ChannelLimit, Request, RequestError, SamplingParams
from harmony import parse_completion
from tests.engine.processors import (
    MODEL_STOPS,
    TO_FINAL,
    Digits,
    allows,
    encode,
    encoding,
    make_processor,
    words,
)


def kept(processed: Outcome, tokens: list[int]) -> str:
    return encoding().decode(tokens[: processed.accepted])


# Length, and stop tokens


def test_the_last_allowed_token_ends_a_completion_for_its_length():
    processor = make_processor(max_tokens=5)
    assert processor.allowance() == 5
    assert processor.process(words(3)) == Outcome(3)
    assert processor.allowance() == 2
    assert processor.process(words(3)) == Outcome(2, finish="length")


def test_a_stop_token_is_kept_and_what_is_behind_it_is_not():
    for stop in MODEL_STOPS:
        assert make_processor().process([*words(2), *encode(stop), *words(2)]) == Outcome(3, finish="stop")
    (own,) = encode(" seven")
    processor = make_processor(stop_token_ids=[own])
    assert processor.process([*words(1), own, *words(1)]) == Outcome(2, finish="stop")


def test_a_stop_token_in_the_last_place_is_a_stop_and_no_length():
    assert make_processor(max_tokens=2).process([*words(1), *encode("<|return|>")]) == Outcome(
        2, finish="stop"
    )


def test_stop_tokens_are_banned_before_min_tokens_and_refused_where_one_comes_all_the_same():
    processor = make_processor(min_tokens=3)
    stops = encode("<|return|>")
    assert set(processor.ban()[0]) >= set(stops) and processor.ban()[1] == 3
    assert not processor.verifies
    assert processor.process([*words(2), *stops]) == Outcome(2)
    assert processor.process([*words(1), *stops]) == Outcome(2, finish="stop")


def test_min_tokens_beyond_max_tokens_ban_up_to_the_end():
    assert make_processor(min_tokens=10, max_tokens=4).ban()[1] == 4


def test_without_an_encoding_there_are_lengths_and_stop_tokens():
    request = Request("r", [1, 2], SamplingParams(min_tokens=2, stop_token_ids=[5]))

    def make():
        return OutputProcessor(
            request,
            0,
            encoding=None,
            stop_tokens=frozenset([3]),
            max_tokens=8,
            matcher=None,
            prompt=request.prompt,
        )

    assert make().ban() == ((3, 5), 2)
    assert make().process([7, 7, 5, 7]) == Outcome(3, finish="stop")
    assert make().process([7, 3]) == Outcome(1)
    assert make().process([7] * 9) == Outcome(8, finish="length")


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        ({"stop": "x"}, "stop"),
        ({"reasoning_budget": 5}, "reasoning_budget"),
        ({"channel_limits": {"final": ChannelLimit(1)}}, "channel_limits"),
    ],
)
def test_what_needs_an_encoding_says_so(sampling, name):
    request = Request("r", [1], SamplingParams(**sampling))
    with pytest.raises(RequestError, match=f"^{name} needs an engine with an encoding"):
        OutputProcessor(
            request,
            0,
            encoding=None,
            stop_tokens=frozenset(),
            max_tokens=8,
            matcher=None,
            prompt=request.prompt,
        )


def test_limits_that_cannot_be_are_refused():
    with pytest.raises(RequestError, match="channel_limits names 'thoughts': it must be one of analysis"):
        make_processor(channel_limits={"thoughts": ChannelLimit(1)})
    with pytest.raises(
        RequestError, match="reasoning_budget is 5: it must be at least the min of analysis, 6"
    ):
        make_processor(reasoning_budget=5, channel_limits={"analysis": ChannelLimit(6)})
    with pytest.raises(RequestError, match="it must be text without lone surrogates"):
        make_processor(stop="\ud800")


# Limits of channels


def test_analysis_at_its_budget_gives_way_to_final():
    processor = make_processor(reasoning_budget=4)
    drawn = [*encode("<|channel|>analysis<|message|>"), *words(4)]
    assert processor.allowance() == len(drawn)
    assert processor.process(drawn) == Outcome(7, tuple(encode(TO_FINAL)))
    assert processor.allowance() == 1000 - 7 - len(encode(TO_FINAL))
    answer = [*words(30), *encode("<|return|>")]
    assert processor.process(answer) == Outcome(31, finish="stop")


def test_what_was_drawn_beyond_the_budget_is_void():
    processor = make_processor(reasoning_budget=4)
    drawn = [*encode("<|channel|>analysis<|message|>"), *words(6)]
    assert processor.process(drawn) == Outcome(7, tuple(encode(TO_FINAL)))


def test_analysis_that_ends_in_time_is_left_alone():
    processor = make_processor(reasoning_budget=4)
    drawn = encode("<|channel|>analysis<|message|>") + words(3)
    drawn += encode(TO_FINAL) + words(40) + encode("<|return|>")
    assert processor.process(drawn) == Outcome(len(drawn), finish="stop")


def test_the_budget_is_for_all_messages_of_analysis_together():
    processor = make_processor(reasoning_budget=4)
    header = "<|channel|>analysis<|message|>"
    drawn = encode(header) + words(3) + encode(f"<|end|><|start|>assistant{header}") + words(3)
    assert processor.process(drawn) == Outcome(len(drawn) - 2, tuple(encode(TO_FINAL)))


@pytest.mark.parametrize(
    ("so_far", "shortest_way"),
    [
        ("", "<|channel|>analysis<|message|>"),
        ("<|channel|>", "analysis<|message|>"),
        ("<|channel|>analysis", "<|message|>"),
        ("<|channel|>analysis<|message|>", ""),
        ("<|channel|>commentary<|message|> word", "<|channel|>analysis<|message|>"),
        ("<|channel|>commentary<|message|> word<|end|>", "<|channel|>analysis<|message|>"),
    ],
)
def test_the_host_looks_again_no_later_than_when_the_budget_is_used_up(so_far, shortest_way):
    processor = make_processor(reasoning_budget=3)
    processor.process(encode(so_far))
    drawn = encode(shortest_way) + words(3)
    assert len(drawn) >= processor.allowance() >= 3
    if so_far != "<|channel|>":  # it need not count the bytes of a name
        assert processor.allowance() == len(drawn)
    assert processor.process(drawn) == Outcome(len(drawn), tuple(encode(TO_FINAL)))


def test_the_smaller_of_two_budgets_counts():
    for budget, most in ((3, 9), (9, 3)):
        processor = make_processor(
            reasoning_budget=budget, channel_limits={"analysis": ChannelLimit(max=most)}
        )
        drawn = encode("<|channel|>analysis<|message|>") + words(9)
        assert processor.process(drawn) == Outcome(6, tuple(encode(TO_FINAL)))


def test_a_prompt_may_end_within_a_message():
    opened = "<|start|>assistant<|channel|>analysis<|message|>So far so"
    processor = make_processor(prompt=opened, reasoning_budget=2)
    assert processor.allowance() == 2
    assert processor.process(words(2)) == Outcome(2, tuple(encode(TO_FINAL)))
    processor = make_processor(prompt="<|start|>assistant<|channel|>ana", reasoning_budget=2)
    assert processor.process(encode("lysis<|message|>") + words(2)).forced == tuple(encode(TO_FINAL))


def test_a_preamble_at_its_limit_gives_way_to_final_and_a_call_ends():
    limits = {"commentary": ChannelLimit(max=2)}
    drawn = encode("<|channel|>commentary<|message|>") + words(3)
    processed = make_processor(channel_limits=limits).process(drawn)
    assert processed == Outcome(len(drawn) - 1, tuple(encode(TO_FINAL)))
    for header in (
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        " to=functions.f<|channel|>commentary<|constrain|>json<|message|>",
    ):
        drawn = encode(header) + words(3)
        assert make_processor(channel_limits=limits).process(drawn) == Outcome(
            len(drawn) - 1, finish="length"
        )


def test_final_at_its_limit_ends_the_completion():
    processor = make_processor(channel_limits={"final": ChannelLimit(max=2)})
    assert processor.allowance() == 1000
    drawn = encode("<|channel|>final<|message|>") + words(3)
    assert processor.process(drawn) == Outcome(len(drawn) - 1, finish="length")


def test_where_no_answer_fits_behind_the_move_to_final_the_completion_ends():
    move = len(encode(TO_FINAL))
    drawn = encode("<|channel|>analysis<|message|>") + words(2)
    processor = make_processor(reasoning_budget=2, max_tokens=len(drawn) + move)
    assert processor.process(drawn) == Outcome(len(drawn), finish="length")
    processor = make_processor(reasoning_budget=2, max_tokens=len(drawn) + move + 1)
    assert processor.process(drawn) == Outcome(len(drawn), tuple(encode(TO_FINAL)))
    assert processor.allowance() == 1
    assert processor.process(words(1)) == Outcome(1, finish="length")


def test_no_message_of_a_channel_ends_before_its_least():
    processor = make_processor(channel_limits={"final": ChannelLimit(min=3)})
    assert processor.verifies and processor.ban() == ((), 0)
    header = encode("<|channel|>final<|message|>")
    # What stands behind the header was drawn without the ban.
    assert processor.process(header + words(2)) == Outcome(len(header))
    banned, until = processor.ban()
    assert until == len(header) + 3
    assert set(banned) == set(encode("<|end|><|start|><|channel|>" + "".join(MODEL_STOPS)))
    for ender in banned:
        assert processor.process([ender]) == Outcome(0)
    assert processor.process(words(2)) == Outcome(2) and processor.verifies
    assert processor.process(words(1)) == Outcome(1) and not processor.verifies
    assert processor.process(encode("<|return|>")) == Outcome(1, finish="stop")


def test_a_least_that_cannot_be_met_any_more_needs_no_looking():
    processor = make_processor(channel_limits={"analysis": ChannelLimit(min=3)})
    assert processor.verifies
    processor.process(encode("<|channel|>final<|message|>"))
    assert not processor.verifies


def test_two_bans_hold_each_for_its_time():
    processor = make_processor(channel_limits={"final": ChannelLimit(min=2)}, min_tokens=8)
    header = encode("<|channel|>final<|message|>")
    processor.process(header)
    assert processor.ban()[1] == len(header) + 2
    assert processor.process(words(4)) == Outcome(2), "the ban of <|end|> is over, that of <|return|> is not"
    assert processor.verifies
    assert processor.ban() == (tuple(sorted(encode("".join(MODEL_STOPS)))), 8)
    assert processor.process(encode("<|return|>")) == Outcome(0)
    assert processor.process(encode("<|end|>")) == Outcome(1, finish="stop")


def test_with_limits_final_is_the_last_message():
    drawn = encode("<|channel|>final<|message|>Yes.<|end|><|start|>assistant<|channel|>analysis<|message|>No")
    end = drawn.index(encoding().end)
    assert make_processor(reasoning_budget=3).process(drawn) == Outcome(end + 1, finish="stop")
    assert make_processor().process(drawn) == Outcome(len(drawn))
    drawn.remove(encoding().end)
    assert make_processor(reasoning_budget=3).process(drawn) == Outcome(end, finish="stop")
    drawn = drawn[:end] + encode("<|channel|>analysis<|message|>No")
    assert make_processor(reasoning_budget=3).process(drawn) == Outcome(end, finish="stop")


def test_a_channel_named_twice_is_counted_as_it_is_read():
    header = "<|channel|>analysis<|channel|>commentary<|message|>"
    drawn = encode(header) + words(5)
    assert make_processor(reasoning_budget=4).process(drawn) == Outcome(
        len(drawn) - 1, tuple(encode(TO_FINAL))
    )
    (message,) = parse_completion(encoding(), drawn).messages
    assert message.channel == "analysis"


def test_a_header_that_lacks_the_end_before_it_begins_a_message():
    drawn = encode("<|channel|>commentary<|message|>I look.<|channel|>analysis<|message|>") + words(5)
    processed = make_processor(reasoning_budget=4).process(drawn)
    assert processed == Outcome(len(drawn) - 1, tuple(encode(TO_FINAL)))


# Stop strings


def test_a_stop_string_ends_the_completion_with_the_token_that_completes_it():
    drawn = encode("<|channel|>final<|message|>One, two, three, four, five")
    processed = make_processor(stop="three,").process(drawn)
    assert (kept(processed, drawn), processed.finish, processed.stop) == (
        "<|channel|>final<|message|>One, two, three,",
        "stop",
        "three,",
    )


def test_a_stop_string_may_lie_within_one_token():
    drawn = encode("<|channel|>final<|message|> international affairs")
    processed = make_processor(stop="nation").process(drawn)
    assert kept(processed, drawn).endswith("<|message|> international")


def test_of_the_strings_that_a_token_completes_the_one_that_begins_first_is_named():
    drawn = encode("<|channel|>final<|message|> international")
    assert make_processor(stop=["al", "national", "tional"]).process(drawn).stop == "national"
    assert make_processor(stop=["natio", "nat", "nati"]).process(drawn).stop == "nat"


@pytest.mark.parametrize(
    "header", ["<|channel|>final", "<|channel|>commentary", "<|channel|>final <|constrain|>json"]
)
def test_stop_strings_are_looked_for_in_text_for_the_user_and_not_in_its_header(header):
    drawn = encode(f"{header}<|message|>It is final")
    processed = make_processor(stop=["final", "commentary", "json", "<|message|>"]).process(drawn)
    assert (processed.accepted, processed.finish, processed.stop) == (len(drawn), "stop", "final")


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>analysis",
        "<|channel|>analysis to=python",
        "<|channel|>commentary to=functions.f <|constrain|>json",
        " to=functions.f<|channel|>commentary",
        " to=functions.f<|channel|>final",
        "<|channel|>thoughts",
        "",
    ],
)
def test_stop_strings_do_not_end_a_thought_or_a_call(header):
    thought = encode(f"{header}<|message|>12 + 30 is 42, so 2<|end|>")
    processor = make_processor(stop=["2"])
    assert processor.process(thought) == Outcome(len(thought))
    answer = encode("<|start|>assistant<|channel|>final<|message|>It is 42.<|return|>")
    processed = processor.process(answer)
    assert kept(processed, answer).endswith("It is 42") and processed.stop == "2"


def test_stop_tokens_end_a_completion_in_every_channel():
    (own,) = encode(" seven")
    for header in ("analysis", "commentary to=functions.f", "final"):
        drawn = encode(f"<|channel|>{header}<|message|> six seven eight")
        processed = make_processor(stop_token_ids=[own]).process(drawn)
        assert (processed.finish, drawn[processed.accepted - 1]) == ("stop", own)


def test_a_stop_string_does_not_reach_from_one_message_into_the_next():
    drawn = encode(f"<|channel|>commentary<|message|>on{TO_FINAL}ce")
    assert make_processor(stop="once").process(drawn) == Outcome(len(drawn))
    assert make_processor(stop="ce").process(drawn).stop == "ce"


def test_a_stop_string_does_not_begin_in_the_prompt():
    prompt = "<|start|>assistant<|channel|>final<|message|>on"
    assert make_processor(prompt=prompt, stop="once").process(encode("ce")) == Outcome(1)
    assert make_processor(prompt=prompt, stop="once").process(encode(" once")).stop == "once"


def test_after_a_plain_prompt_everything_is_text_until_a_message_begins():
    for prompt in ("Once upon", "<|message|>Once upon", "Once <|channel|> upon"):
        assert make_processor(prompt=prompt, stop="there").process(encode(" a time there")).stop == "there"
    thought = encode("<|start|>assistant<|channel|>analysis<|message|>there<|end|>")
    assert make_processor(prompt="Once upon", stop="there").process(thought) == Outcome(len(thought))


def test_a_stop_string_in_the_last_place_is_a_stop_and_no_length():
    drawn = encode("<|channel|>final<|message|>done")
    assert make_processor(stop="done", max_tokens=len(drawn)).process(drawn).finish == "stop"


TEXTS = st.text(st.sampled_from("abcäß你好🙂👩‍🚀 \n"), min_size=1, max_size=14)


def bytes_as_tokens(data: bytes) -> list[int]:
    """The tokens of text that is cut anywhere, within characters, too."""
    try:
        return encoding().encode_ordinary(data.decode())
    except UnicodeDecodeError:
        ids = {encoding().token_bytes(token): token for token in range(256)}
        return [ids[bytes([byte])] for byte in data]


@settings(deadline=None)
@given(text=TEXTS, stops=st.lists(TEXTS.map(lambda text: text[:4]), min_size=1, max_size=4), data=st.data())
def test_stop_strings_are_found_however_tokens_split_the_text(text, stops, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw)), max_size=5)) | {len(raw)})
    pieces = [raw[begin:end] for begin, end in zip([0, *cuts], cuts, strict=False)]
    content = [token for piece in pieces for token in bytes_as_tokens(piece)]
    expected = Outcome(len(content))
    before = ""
    for count in range(1, len(content) + 1):
        now = encoding().decode_bytes(content[:count]).decode(errors="ignore")
        new = [stop for stop in stops if stop in now and stop not in before]
        if new:
            stop = min(new, key=lambda stop: (now.index(stop), len(stop)))
            expected = Outcome(count, finish="stop", stop=stop)
            break
        before = now
    processor = make_processor(stop=stops, prompt="<|start|>assistant<|channel|>final<|message|>")
    assert processor.process(content) == expected


# Under a grammar


def test_what_a_grammar_does_not_allow_is_drawn_again():
    processor = make_processor(matcher=Digits())
    assert processor.verifies and processor.grammar_complete is False
    drawn = encode("<|channel|>final<|message|>") + encode("0") + words(1) + encode("1")
    assert processor.process(drawn) == Outcome(4)
    (one, word) = encode("1")[0], words(1)[0]
    assert allows(processor.mask(), one) and not allows(processor.mask(), word)
    processor.process([one, one])
    assert processor.grammar_complete is True
    assert processor.process(encode("<|return|>")) == Outcome(1, finish="stop")
    assert make_processor().grammar_complete is None and make_processor().mask() is None


def test_at_the_budget_the_grammar_says_how_analysis_is_left():
    processor = make_processor(matcher=Digits(), reasoning_budget=2)
    drawn = encode("<|channel|>analysis<|message|>") + words(3)
    assert processor.process(drawn) == Outcome(len(drawn) - 1, tuple(encode(TO_FINAL)))
    assert allows(processor.mask(), encode("0")[0]) and not allows(processor.mask(), words(1)[0])


def test_where_the_grammar_has_no_way_out_of_analysis_the_completion_ends():
    processor = make_processor(matcher=Digits(closes=False), reasoning_budget=2)
    drawn = encode("<|channel|>analysis<|message|>") + words(3)
    assert processor.process(drawn) == Outcome(len(drawn) - 1, finish="length")


def test_a_whole_document_may_end_before_the_least():
    processor = make_processor(matcher=Digits(), channel_limits={"final": ChannelLimit(min=9)}, min_tokens=20)
    processor.process(encode("<|channel|>final<|message|>"))
    assert processor.ban()[0]
    for digit in (0, 1, 2):
        processor.process(encode(str(digit)))
    assert processor.ban() == ((), 0)
    assert processor.process(encode("<|return|>")) == Outcome(1, finish="stop")


def test_a_grammar_that_gives_up_ends_the_completion_and_nothing_else():
    processor = make_processor(matcher=Digits(patience=5))
    drawn = encode("<|channel|>analysis<|message|>") + words(5)
    assert processor.process(drawn) == Outcome(5, finish="length")


def test_the_budget_leads_a_real_grammar_from_analysis_to_its_document():
    pytest.importorskip("llguidance")
    from gptoss_jax.engine.grammar import Grammar, GrammarCompiler

    matcher = GrammarCompiler(encoding(), 201_088).compile(Grammar.regex("[0-9]{2}"))
    processor = make_processor(matcher=matcher, reasoning_budget=2)
    drawn = encode("<|channel|>analysis<|message|>") + words(2)
    assert processor.process(drawn) == Outcome(len(drawn), tuple(encode(TO_FINAL)))
    assert processor.process([*encode("42"), *words(1)]) == Outcome(1)
    assert processor.grammar_complete is True
    assert processor.process(encode("<|return|>")) == Outcome(1, finish="stop")
