"""What the host makes of drawn tokens: where a completion ends, what is forced, what is drawn again."""

import pytest
from controls import MODEL_STOPS, TO_FINAL, Digits, allows, encode, encoding, make_control, words
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.engine.control import Control, Verdict
from gptoss_jax.engine.request import ChannelLimit, Request, RequestError, SamplingParams


def kept(verdict: Verdict, tokens: list[int]) -> str:
    return encoding().decode(tokens[: verdict.accepted])


# Length, and stop tokens


def test_the_last_allowed_token_ends_a_completion_for_its_length():
    control = make_control(max_tokens=5)
    assert control.allowance() == 5
    assert control.advance(words(3)) == Verdict(3)
    assert control.allowance() == 2
    assert control.advance(words(3)) == Verdict(2, finish="length")


def test_a_stop_token_is_kept_and_what_is_behind_it_is_not():
    for stop in MODEL_STOPS:
        assert make_control().advance([*words(2), *encode(stop), *words(2)]) == Verdict(3, finish="stop")
    (own,) = encode(" seven")
    control = make_control(stop_token_ids=[own])
    assert control.advance([*words(1), own, *words(1)]) == Verdict(2, finish="stop")


def test_a_stop_token_in_the_last_place_is_a_stop_and_no_length():
    assert make_control(max_tokens=2).advance([*words(1), *encode("<|return|>")]) == Verdict(2, finish="stop")


def test_stop_tokens_are_banned_before_min_tokens_and_refused_where_one_comes_all_the_same():
    control = make_control(min_tokens=3)
    stops = encode("<|return|>")
    assert set(control.ban()[0]) >= set(stops) and control.ban()[1] == 3
    assert not control.verifies
    assert control.advance([*words(2), *stops]) == Verdict(2)
    assert control.advance([*words(1), *stops]) == Verdict(2, finish="stop")


def test_min_tokens_beyond_max_tokens_ban_up_to_the_end():
    assert make_control(min_tokens=10, max_tokens=4).ban()[1] == 4


def test_without_an_encoding_there_are_lengths_and_stop_tokens():
    request = Request("r", [1, 2], SamplingParams(min_tokens=2, stop_token_ids=[5]))

    def make():
        return Control(
            request,
            0,
            encoding=None,
            stop_tokens=frozenset([3]),
            max_tokens=8,
            matcher=None,
            prompt=request.prompt,
        )

    assert make().ban() == ((3, 5), 2)
    assert make().advance([7, 7, 5, 7]) == Verdict(3, finish="stop")
    assert make().advance([7, 3]) == Verdict(1)
    assert make().advance([7] * 9) == Verdict(8, finish="length")


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
        Control(
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
        make_control(channel_limits={"thoughts": ChannelLimit(1)})
    with pytest.raises(
        RequestError, match="reasoning_budget is 5: it must be at least the least of analysis, 6"
    ):
        make_control(reasoning_budget=5, channel_limits={"analysis": ChannelLimit(6)})
    with pytest.raises(RequestError, match="it must be text without lone surrogates"):
        make_control(stop="\ud800")


# Limits of channels


def test_analysis_at_its_budget_gives_way_to_final():
    control = make_control(reasoning_budget=4)
    drawn = [*encode("<|channel|>analysis<|message|>"), *words(4)]
    assert control.allowance() == len(drawn)
    assert control.advance(drawn) == Verdict(7, tuple(encode(TO_FINAL)))
    assert control.allowance() == 1000 - 7 - len(encode(TO_FINAL))
    answer = [*words(30), *encode("<|return|>")]
    assert control.advance(answer) == Verdict(31, finish="stop")


def test_what_was_drawn_beyond_the_budget_is_void():
    control = make_control(reasoning_budget=4)
    drawn = [*encode("<|channel|>analysis<|message|>"), *words(6)]
    assert control.advance(drawn) == Verdict(7, tuple(encode(TO_FINAL)))


def test_analysis_that_ends_in_time_is_left_alone():
    control = make_control(reasoning_budget=4)
    drawn = encode("<|channel|>analysis<|message|>") + words(3)
    drawn += encode(TO_FINAL) + words(40) + encode("<|return|>")
    assert control.advance(drawn) == Verdict(len(drawn), finish="stop")


def test_the_budget_is_for_all_messages_of_analysis_together():
    control = make_control(reasoning_budget=4)
    header = "<|channel|>analysis<|message|>"
    drawn = encode(header) + words(3) + encode(f"<|end|><|start|>assistant{header}") + words(3)
    assert control.advance(drawn) == Verdict(len(drawn) - 2, tuple(encode(TO_FINAL)))


@pytest.mark.parametrize(
    ("so_far", "shortest_way"),
    [
        ("", "<|channel|>analysis<|message|>"),
        ("<|channel|>", "analysis<|message|>"),
        ("<|channel|>analysis", "<|message|>"),
        ("<|channel|>analysis<|message|>", ""),
        ("<|channel|>commentary<|message|> word", "<|end|><|channel|>analysis<|message|>"),
        ("<|channel|>commentary<|message|> word<|end|>", "<|channel|>analysis<|message|>"),
    ],
)
def test_the_host_looks_again_no_later_than_when_the_budget_is_used_up(so_far, shortest_way):
    control = make_control(reasoning_budget=3)
    control.advance(encode(so_far))
    drawn = encode(shortest_way) + words(3)
    assert len(drawn) >= control.allowance() >= 3
    if so_far != "<|channel|>":  # it need not count the bytes of a name
        assert control.allowance() == len(drawn)
    assert control.advance(drawn) == Verdict(len(drawn), tuple(encode(TO_FINAL)))


def test_the_smaller_of_two_budgets_counts():
    for budget, most in ((3, 9), (9, 3)):
        control = make_control(reasoning_budget=budget, channel_limits={"analysis": ChannelLimit(most=most)})
        drawn = encode("<|channel|>analysis<|message|>") + words(9)
        assert control.advance(drawn) == Verdict(6, tuple(encode(TO_FINAL)))


def test_a_prompt_may_end_within_a_message():
    opened = "<|start|>assistant<|channel|>analysis<|message|>So far so"
    control = make_control(prompt=opened, reasoning_budget=2)
    assert control.allowance() == 2
    assert control.advance(words(2)) == Verdict(2, tuple(encode(TO_FINAL)))
    control = make_control(prompt="<|start|>assistant<|channel|>ana", reasoning_budget=2)
    assert control.advance(encode("lysis<|message|>") + words(2)).forced == tuple(encode(TO_FINAL))


def test_a_preamble_at_its_limit_gives_way_to_final_and_a_call_ends():
    limits = {"commentary": ChannelLimit(most=2)}
    drawn = encode("<|channel|>commentary<|message|>") + words(3)
    verdict = make_control(channel_limits=limits).advance(drawn)
    assert verdict == Verdict(len(drawn) - 1, tuple(encode(TO_FINAL)))
    for header in (
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        " to=functions.f<|channel|>commentary<|constrain|>json<|message|>",
    ):
        drawn = encode(header) + words(3)
        assert make_control(channel_limits=limits).advance(drawn) == Verdict(len(drawn) - 1, finish="length")


def test_final_at_its_limit_ends_the_completion():
    control = make_control(channel_limits={"final": ChannelLimit(most=2)})
    assert control.allowance() == 1000
    drawn = encode("<|channel|>final<|message|>") + words(3)
    assert control.advance(drawn) == Verdict(len(drawn) - 1, finish="length")


def test_where_no_answer_fits_behind_the_move_to_final_the_completion_ends():
    move = len(encode(TO_FINAL))
    drawn = encode("<|channel|>analysis<|message|>") + words(2)
    control = make_control(reasoning_budget=2, max_tokens=len(drawn) + move)
    assert control.advance(drawn) == Verdict(len(drawn), finish="length")
    control = make_control(reasoning_budget=2, max_tokens=len(drawn) + move + 1)
    assert control.advance(drawn) == Verdict(len(drawn), tuple(encode(TO_FINAL)))
    assert control.allowance() == 1
    assert control.advance(words(1)) == Verdict(1, finish="length")


def test_no_message_of_a_channel_ends_before_its_least():
    control = make_control(channel_limits={"final": ChannelLimit(least=3)})
    assert control.verifies and control.ban() == ((), 0)
    header = encode("<|channel|>final<|message|>")
    # What stands behind the header was drawn without the ban.
    assert control.advance(header + words(2)) == Verdict(len(header))
    banned, until = control.ban()
    assert until == len(header) + 3
    assert set(banned) == set(encode("<|end|><|start|>" + "".join(MODEL_STOPS)))
    for ender in banned:
        assert control.advance([ender]) == Verdict(0)
    assert control.advance(words(2)) == Verdict(2) and control.verifies
    assert control.advance(words(1)) == Verdict(1) and not control.verifies
    assert control.advance(encode("<|return|>")) == Verdict(1, finish="stop")


def test_a_least_that_cannot_be_met_any_more_needs_no_looking():
    control = make_control(channel_limits={"analysis": ChannelLimit(least=3)})
    assert control.verifies
    control.advance(encode("<|channel|>final<|message|>"))
    assert not control.verifies


def test_two_bans_hold_each_for_its_time():
    control = make_control(channel_limits={"final": ChannelLimit(least=2)}, min_tokens=8)
    header = encode("<|channel|>final<|message|>")
    control.advance(header)
    assert control.ban()[1] == len(header) + 2
    assert control.advance(words(4)) == Verdict(2), "the ban of <|end|> is over, that of <|return|> is not"
    assert control.verifies
    assert control.ban() == (tuple(sorted(encode("".join(MODEL_STOPS)))), 8)
    assert control.advance(encode("<|return|>")) == Verdict(0)
    assert control.advance(encode("<|end|>")) == Verdict(1, finish="stop")


def test_with_limits_final_is_the_last_message():
    drawn = encode("<|channel|>final<|message|>Yes.<|end|><|start|>assistant<|channel|>analysis<|message|>No")
    end = drawn.index(encoding().end)
    assert make_control(reasoning_budget=3).advance(drawn) == Verdict(end + 1, finish="stop")
    assert make_control().advance(drawn) == Verdict(len(drawn))
    drawn.remove(encoding().end)
    assert make_control(reasoning_budget=3).advance(drawn) == Verdict(end, finish="stop")


# Stop strings


def test_a_stop_string_ends_the_completion_with_the_token_that_completes_it():
    drawn = encode("<|channel|>final<|message|>One, two, three, four, five")
    verdict = make_control(stop="three,").advance(drawn)
    assert (kept(verdict, drawn), verdict.finish, verdict.stop) == (
        "<|channel|>final<|message|>One, two, three,",
        "stop",
        "three,",
    )


def test_a_stop_string_may_lie_within_one_token():
    drawn = encode("<|channel|>final<|message|> international affairs")
    verdict = make_control(stop="nation").advance(drawn)
    assert kept(verdict, drawn).endswith("<|message|> international")


def test_of_the_strings_that_a_token_completes_the_one_that_begins_first_is_named():
    drawn = encode("<|channel|>final<|message|> international")
    assert make_control(stop=["al", "national", "tional"]).advance(drawn).stop == "national"
    assert make_control(stop=["natio", "nat", "nati"]).advance(drawn).stop == "nat"


def test_stop_strings_are_looked_for_in_content_of_every_channel_and_nowhere_else():
    for channel in ("analysis", "final"):
        drawn = encode(f"<|channel|>{channel}<|message|>It is final")
        verdict = make_control(stop=["final", "analysis", "<|message|>"]).advance(drawn)
        assert (verdict.accepted, verdict.stop) == (len(drawn), "final")


def test_a_stop_string_does_not_reach_from_one_message_into_the_next():
    drawn = encode(f"<|channel|>analysis<|message|>on{TO_FINAL}ce")
    assert make_control(stop="once").advance(drawn) == Verdict(len(drawn))
    assert make_control(stop="ce").advance(drawn).stop == "ce"


def test_a_stop_string_does_not_begin_in_the_prompt():
    prompt = "<|start|>assistant<|channel|>final<|message|>on"
    assert make_control(prompt=prompt, stop="once").advance(encode("ce")) == Verdict(1)
    assert make_control(prompt=prompt, stop="once").advance(encode(" once")).stop == "once"


def test_after_a_plain_prompt_everything_is_content():
    assert make_control(prompt="Once upon", stop="there").advance(encode(" a time there")).stop == "there"


def test_a_stop_string_in_the_last_place_is_a_stop_and_no_length():
    drawn = encode("<|channel|>final<|message|>done")
    assert make_control(stop="done", max_tokens=len(drawn)).advance(drawn).finish == "stop"


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
    expected = Verdict(len(content))
    before = ""
    for count in range(1, len(content) + 1):
        now = encoding().decode_bytes(content[:count]).decode(errors="ignore")
        new = [stop for stop in stops if stop in now and stop not in before]
        if new:
            stop = min(new, key=lambda stop: (now.index(stop), len(stop)))
            expected = Verdict(count, finish="stop", stop=stop)
            break
        before = now
    control = make_control(stop=stops, prompt="<|start|>assistant<|channel|>final<|message|>")
    assert control.advance(content) == expected


# Under a grammar


def test_what_a_grammar_does_not_allow_is_drawn_again():
    control = make_control(matcher=Digits())
    assert control.verifies and control.grammar_complete is False
    drawn = encode("<|channel|>final<|message|>") + encode("0") + words(1) + encode("1")
    assert control.advance(drawn) == Verdict(4)
    (one, word) = encode("1")[0], words(1)[0]
    assert allows(control.mask(), one) and not allows(control.mask(), word)
    control.advance([one, one])
    assert control.grammar_complete is True
    assert control.advance(encode("<|return|>")) == Verdict(1, finish="stop")
    assert make_control().grammar_complete is None and make_control().mask() is None


def test_at_the_budget_the_grammar_says_how_analysis_is_left():
    control = make_control(matcher=Digits(), reasoning_budget=2)
    drawn = encode("<|channel|>analysis<|message|>") + words(3)
    assert control.advance(drawn) == Verdict(len(drawn) - 1, tuple(encode(TO_FINAL)))
    assert allows(control.mask(), encode("0")[0]) and not allows(control.mask(), words(1)[0])


def test_where_the_grammar_has_no_way_out_of_analysis_the_completion_ends():
    control = make_control(matcher=Digits(closes=False), reasoning_budget=2)
    drawn = encode("<|channel|>analysis<|message|>") + words(3)
    assert control.advance(drawn) == Verdict(len(drawn) - 1, finish="length")


def test_a_whole_document_may_end_before_the_least():
    control = make_control(matcher=Digits(), channel_limits={"final": ChannelLimit(least=9)}, min_tokens=20)
    control.advance(encode("<|channel|>final<|message|>"))
    assert control.ban()[0]
    for digit in (0, 1, 2):
        control.advance(encode(str(digit)))
    assert control.ban() == ((), 0)
    assert control.advance(encode("<|return|>")) == Verdict(1, finish="stop")


def test_a_grammar_that_gives_up_ends_the_completion_and_nothing_else():
    control = make_control(matcher=Digits(patience=5))
    drawn = encode("<|channel|>analysis<|message|>") + words(5)
    assert control.advance(drawn) == Verdict(5, finish="length")


def test_the_budget_leads_a_real_grammar_from_analysis_to_its_document():
    pytest.importorskip("llguidance")
    from gptoss_jax.engine.grammar import Grammar, GrammarCompiler

    matcher = GrammarCompiler(encoding(), 201_088).compile(Grammar.regex("[0-9]{2}"))
    control = make_control(matcher=matcher, reasoning_budget=2)
    drawn = encode("<|channel|>analysis<|message|>") + words(2)
    assert control.advance(drawn) == Verdict(len(drawn), tuple(encode(TO_FINAL)))
    assert control.advance([*encode("42"), *words(1)]) == Verdict(1)
    assert control.grammar_complete is True
    assert control.advance(encode("<|return|>")) == Verdict(1, finish="stop")
