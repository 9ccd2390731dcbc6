"""The page in headless Chromium, in front of a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gptoss_jax.serve.sealing import Sealer
from tests.clients.recorder import recording, traces_of
from tests.serve.fake_tools import FakeTool, engine_of_rounds
from tests.serve.served import DATE, Scripted, serving

try:
    from selenium import webdriver
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    from tests.page import browsing
except ImportError:
    pytest.skip("selenium is not installed", allow_module_level=True)
if not (browsing.BROWSER.exists() and browsing.DRIVER.exists()):
    pytest.skip("there is no /usr/bin/chromium with its chromedriver", allow_module_level=True)


END = "<|end|><|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>Secret thought.{END}"
PREAMBLE = f"<|channel|>commentary<|message|>I look it up.{END}"
ANSWER = f"{THOUGHT}{PREAMBLE}<|channel|>final<|message|>It is 5.<|return|>"
SHORT = "<|channel|>final<|message|>Good.<|return|>"
CALL = f'{THOUGHT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"a":1}}<|call|>'
LONG = "<|channel|>final<|message|>" + "and so on " * 300 + "<|return|>"
TOOLS = json.dumps([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
EVIL = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'


Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with browsing.chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def opened(driver: webdriver.Chrome) -> Iterator[Opener]:
    """Opens the page of a server. In the end it must have asked nobody else, and complained of nothing."""
    pages: list[tuple[Any, str]] = []

    def open_page(server: Scripted, url: str | None = None) -> Any:
        pages.append((browsing.Page(driver, url or server.url), url or server.url))
        return pages[-1][0]

    yield open_page
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    for page, url in pages:
        assert page.requests()
        assert [asked for asked in page.requests() if not asked.startswith(url + "/")] == []
        for line in page.console():
            assert "Failed to load resource" in line, line  # a status, which some tests want


def test_a_chat_shows_preamble_and_answer_and_reasoning_when_it_is_asked_for(scripted, opened) -> None:
    server = scripted(ANSWER)
    page = opened(server)
    assert page.one("#model").text == "tiny"
    page.say("What is 2 + 3?")
    assert page.text(".user .said") == "What is 2 + 3?"
    assert page.text(".preamble .said") == "I look it up."
    assert page.text(".assistant > .said") == "It is 5."
    assert page.one(".reasoning").get_attribute("open") is None
    assert not page.one(".reasoning .said").is_displayed()
    page.one(".reasoning summary").click()
    assert page.one(".reasoning .said").text == "Secret thought."
    assert page.console() == []


@pytest.mark.slow
def test_text_is_shown_as_it_comes_and_stop_frees_the_slot(scripted, opened) -> None:
    server = scripted(LONG, SHORT)
    page = opened(server)
    server.engine.pause_at = 20
    page.say("Go.", wait=False)
    page.wait(lambda: len(page.text(".assistant")) > 60)
    assert not page.all(".note")
    assert not page.one("#send").is_displayed()
    page.one("#stop").click()
    page.wait(lambda: page.all(".note"))
    assert page.one(".note").text == "Stopped"
    page.wait(lambda: "gptoss_jax_cancelled_requests_total 1.0" in server.figures())
    server.engine.gate.set()
    server.wait_until_idle()
    assert "gptoss_jax_unfinished_samples 0.0" in server.figures()
    page.say("And now?")
    assert "<|channel|>final<|message|>and so on" in server.decoded_prompt()
    assert page.all(".assistant > .said")[-1].text == "Good."


@pytest.mark.slow
def test_escape_stops_and_a_turn_without_an_answer_leaves_nothing(scripted, opened) -> None:
    server = scripted(THOUGHT + LONG, SHORT)
    page = opened(server)
    server.engine.pause_at = 3
    page.say("Go.", wait=False)
    page.wait(lambda: page.all(".reasoning"))
    page.one("#message").send_keys(Keys.ESCAPE)
    page.wait(lambda: page.all(".note"))
    server.engine.gate.set()
    page.say("Again.")
    assert "Secret" not in server.decoded_prompt()


@pytest.mark.slow
def test_a_call_is_shown_and_goes_on_with_the_result_that_is_typed(scripted, opened) -> None:
    server = scripted(CALL, ANSWER)
    page = opened(server)
    page.fill("tools", TOOLS)
    page.say("Call f.")
    assert page.one(".call .label").text == "Call of f"
    assert json.loads(page.one(".call pre").text) == {"a": 1}
    assert page.one(".result label").text == "Result of f"
    assert not page.one("#send").is_enabled()
    page.driver.switch_to.active_element.send_keys("seven\nand" + Keys.SHIFT + Keys.ENTER)
    page.wait(lambda: len(page.all(".note")) == 2)
    assert page.text(".assistant > .said") == "It is 5."
    prompt = server.decoded_prompt()
    assert "namespace functions {" in prompt
    assert "Secret thought." in prompt, "reasoning stays between calls"
    assert prompt.endswith("<|message|>seven<|end|><|start|>assistant")
    assert page.one("#send").is_enabled()


@pytest.mark.slow
def test_a_call_that_was_cut_off_waits_for_no_result(scripted, opened) -> None:
    server = scripted(CALL.removesuffix("1}<|call|>"), SHORT)
    page = opened(server)
    page.fill("tools", TOOLS)
    page.say("Call f.")
    assert page.one(".note").text.startswith("Cut off")
    assert page.text(".call pre") == '{"a":'
    assert not page.all(".result")
    page.say("Once more.")
    assert page.text(".assistant > .said") == "Good."
    assert "to=functions.f" not in server.decoded_prompt()


@pytest.mark.slow
def test_effort_instructions_and_schema_are_in_the_request(scripted, opened) -> None:
    server = scripted(SHORT)
    page = opened(server)
    Select(page.one("#effort")).select_by_value("high")
    page.fill("instructions", "Be brief.")
    page.fill("schema", '{"type": "object", "properties": {"oddity": {"type": "integer"}}}')
    page.fill("temperature", "0.25")
    page.fill("max-tokens", "77")
    page.say("Hi")
    prompt, (request,) = server.decoded_prompt(), server.engine.requests.values()
    assert "Reasoning: high" in prompt
    assert "Be brief." in prompt
    assert "oddity" in prompt
    assert "oddity" in str(request.sampling.grammar)
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.25, 77)


@pytest.mark.slow
def test_a_wrong_field_is_said_and_sends_nothing(scripted, opened) -> None:
    server = scripted(SHORT)
    page = opened(server)
    page.one("#message").send_keys("Hi")
    for field, wrong, message in [
        ("schema", '{"type": ', "This is not JSON"),
        ("schema", "[]", "a schema is an object"),
        ("tools", "{}", "not an array of tools"),
        ("tools", '[{"name": "f"}]', "[0] has no type"),
        ("tools", '[null, {"type": "function"}]', "[0] has no type"),
        ("tools", '[{"type": "function"}]', "[0] has no name"),
    ]:
        page.fill(field, wrong)
        assert message in page.text(f"#{field}-error")
        page.one("#message").send_keys(Keys.ENTER)
        assert page.focused() == field
        assert page.one("#message").get_property("value") == "Hi"
        page.fill(field, " ")
        assert page.text(f"#{field}-error") == ""
    assert not server.engine.requests
    page.say("!")
    assert page.text(".user .said") == "Hi!"


@pytest.mark.slow
def test_with_hidden_reasoning_no_byte_of_it_reaches_the_browser(scripted, opened) -> None:
    secret = CALL.replace("Secret thought.", "ψξψ ξψ.")
    server = scripted(secret, secret, ANSWER, hide_reasoning=True, sealer=Sealer(None))
    with recording(server.url) as recorder:
        page = opened(server, recorder.url)
        page.fill("tools", TOOLS)
        page.tab("tokens")
        page.say("Call f.")
        for turns in (2, 3):
            page.one(".result textarea").send_keys("7" + Keys.ENTER)
            page.wait(lambda turns=turns: len(page.all(".note")) == turns)
            assert "ψξψ ξψ." in server.decoded_prompt(), "the model has it back, encrypted on the way"
        page.wait(lambda: "It is 5." in page.text("#tokens"))
        Select(page.one("#token-scope")).select_by_value("all")
        page.wait(lambda: "reasoning not shown" in page.text("#token-total"))
        assert b"It is 5." in recorder.received
        assert traces_of("ψξ", recorder.received) == []
        assert not {"ψ", "ξ"} & set(page.driver.page_source)
        assert not page.all(".reasoning, .role-analysis")


@pytest.mark.slow
def test_what_the_server_runs_itself_is_shown_and_goes_into_the_next_turn(encoding, opened) -> None:
    code = "<|channel|>analysis to=python code<|message|>print(6*7)<|call|>"
    search = '<|channel|>analysis to=browser.search<|message|>{"query":"<b>cats"}<|call|>'
    engine = engine_of_rounds([code, search, SHORT], encoding)
    tools = [FakeTool("python", lambda text: "<b>42"), FakeTool("browser")]
    with serving(engine, encoding, None, Sealer(None), tools) as url:
        server = Scripted(url, engine, encoding)
        page = opened(server)
        page.fill("tools", '[{"type": "python"}, {"type": "browser"}]')
        page.say("Run it.")
        assert page.texts(".call .label")[0] == "Code that the server ran"
        assert page.texts(".call pre")[:2] == ["print(6*7)", "<b>42"]
        assert "<b>cats" in page.texts(".call pre")[2]
        assert page.one("#send").is_enabled()
        page.say("Once more.")
        assert not page.all(".failed")
        assert server.decoded_prompt().count("Once more.") == 1
        server.http.close()
        server.sdk.close()


@pytest.mark.slow
def test_text_of_the_model_of_functions_and_of_errors_stays_text(scripted, opened) -> None:
    arguments = json.dumps({"a": EVIL})
    call = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{arguments}<|call|>"
    said = "".join(f"<|channel|>{channel}<|message|>{EVIL}{END}" for channel in ("analysis", "commentary"))
    server = scripted(
        f"{said}<|channel|>final<|message|>{EVIL}<|return|>", call, f"{said}{call}", SHORT, model=EVIL
    )
    page = opened(server)
    assert page.one("#model").text == EVIL
    page.tab("tokens")
    page.say(EVIL)
    for selector in (".user .said", ".reasoning .said", ".preamble .said", ".assistant > .said"):
        assert page.text(selector) == EVIL
    page.fill("tools", TOOLS)
    page.say("Call it.")
    assert EVIL in json.loads(page.text(".call pre")).values()
    page.one(".result textarea").send_keys(EVIL)
    page.one(".result button").click()
    page.wait(lambda: len(page.all(".note")) == 3)
    assert page.all(".call pre")[1].text == EVIL
    page.tab("tokens")
    page.wait(lambda: page.text("#tokens").count("onerror") >= 5)
    page.one("#new-chat").click()
    page.fill("tools", json.dumps([{"type": "function", "name": EVIL}]))
    page.say("Hi")
    assert "onerror" in page.text(".failed p"), "the error says the name"
    page.tab("tokens")
    page.wait(lambda: "onerror" in page.text("#token-total"))
    assert page.driver.execute_script("return window.hit") is None
    assert not page.all("img, main script")


@pytest.mark.slow
def test_the_key_is_asked_for_and_kept_for_the_session_only(scripted, opened) -> None:
    server = scripted(SHORT, api_keys=("open sesame",))
    page = opened(server)
    assert "asks for an API key" in page.text("#key-error")
    assert page.focused() == "key"
    page.one("#key").send_keys("wrong" + Keys.ENTER)
    page.wait(lambda: "does not know this key" in page.text("#key-error"))
    page.one("#key").clear()
    page.one("#key").send_keys("open sesame" + Keys.ENTER)
    page.wait(lambda: page.one("#model").text == "tiny")
    assert page.text("#key-error") == ""
    page.say("Hi")
    assert page.text(".assistant > .said") == "Good."
    kept = page.driver.execute_script(
        "return [Object.values(sessionStorage), localStorage.length, document.cookie]"
    )
    assert kept == [["open sesame"], 0, ""]
    page.driver.refresh()
    page.wait(lambda: page.one("#model").text == "tiny")
    assert not page.all(".turn")


@pytest.mark.slow
def test_an_error_is_said_and_the_turn_can_be_tried_again(scripted, opened) -> None:
    server = scripted(SHORT, max_samples=1)
    page = opened(server)
    server.engine.gate.clear()
    with server.http.stream("POST", "/responses", json={"input": "Hi", "stream": True}):
        page.say("Hello")
        assert "try again in 5 seconds" in page.one(".failed p").text
        server.engine.gate.set()
    server.wait_until_idle()
    page.wait(lambda: "gptoss_jax_unfinished_samples 0.0" in server.figures())
    page.one(".failed button").click()
    page.wait(lambda: page.all(".note"))
    assert page.text(".assistant > .said") == "Good."
    assert not page.all(".failed")
    assert server.decoded_prompt().count("Hello") == 1


@pytest.mark.slow
def test_an_engine_that_fails_in_mid_stream_is_said(scripted, opened) -> None:
    server = scripted(LONG, engine={"fail_at": 20})
    page = opened(server)
    page.say("Hello")
    assert "on fire" in page.one(".failed p").text
    assert page.one("#send").is_enabled()


@pytest.mark.slow
def test_the_panel_has_the_tokens_of_openai_harmony(scripted, opened, known, known_encoding) -> None:
    server = scripted(ANSWER)
    page = opened(server)
    Select(page.one("#effort")).select_by_value("low")
    page.say("What is 2 + 3? 👩‍🔬")
    system = (
        known.SystemContent.new()
        .with_reasoning_effort(known.ReasoningEffort.LOW)
        .with_conversation_start_date(DATE)
    )
    of, assistant = known.Message.from_role_and_content, known.Role.ASSISTANT
    messages = [
        of(known.Role.SYSTEM, system),
        of(known.Role.USER, "What is 2 + 3? 👩‍🔬"),
        of(assistant, "Secret thought.").with_channel("analysis"),
        of(assistant, "I look it up.").with_channel("commentary"),
        of(assistant, "It is 5.").with_channel("final"),
    ]
    conversation = known.Conversation.from_messages(messages)
    config = known.RenderConversationConfig(auto_drop_analysis=False)
    whole = known_encoding.render_conversation_for_completion(conversation, assistant, config)
    next_prompt = known_encoding.render_conversation_for_completion(conversation, assistant)
    page.tab("tokens")
    page.wait(lambda: len(page.token_ids()) == len(next_prompt))
    assert page.token_ids() == next_prompt
    Select(page.one("#token-scope")).select_by_value("all")
    page.wait(lambda: len(page.token_ids()) == len(whole))
    assert page.token_ids() == whole
    counts = [int(count) for count in page.texts(".count")]
    assert page.text("#token-total") == f"{len(whole)} tokens in {len(counts)} messages"
    assert sum(counts) == len(whole)
    heads = page.texts(".message summary span:first-child")
    assert heads[2:5] == ["assistant · analysis", "assistant · commentary", "assistant · final"]
    assert page.texts(".role-analysis .special") == ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"]
    page.one("#token-ids").click()
    page.wait(lambda: page.texts(".token") == [str(token) for token in whole])


@pytest.mark.slow
def test_the_panel_tells_how_busy_the_server_is(scripted, opened) -> None:
    server = scripted(LONG)
    page = opened(server)
    server.engine.pause_at = 5
    page.say("Go.", wait=False)
    page.one("#panel-toggle").click()
    page.wait(lambda: "running\n1/4" in page.one("#rates").text)
    server.engine.gate.set()
    page.wait(lambda: "running\n0/4" in page.one("#rates").text)


@pytest.mark.slow
def test_a_new_chat_forgets_the_old_one_even_in_mid_stream(scripted, opened) -> None:
    server = scripted(LONG, SHORT)
    page = opened(server)
    server.engine.pause_at = 10
    page.say("First.", wait=False)
    page.wait(lambda: len(page.text("#thread")) > 30)
    page.one("#new-chat").click()
    server.engine.gate.set()
    server.wait_until_idle()
    assert page.text("#thread") == ""
    assert page.one("#welcome").is_displayed()
    assert page.focused() == "message"
    page.say("Second.")
    assert "First." not in server.decoded_prompt()
    assert [said.text for said in page.all(".said")] == ["Second.", "Good."]


@pytest.mark.slow
def test_the_page_can_be_used_with_the_keyboard(scripted, opened) -> None:
    page = opened(scripted(ANSWER))
    page.one("#message").send_keys("One" + Keys.SHIFT + Keys.ENTER + Keys.NULL + "two" + Keys.ENTER)
    page.wait(lambda: page.all(".note"))
    assert page.text(".user .said") == "One\ntwo"
    reached = []
    for _ in range(9):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.focused() or page.driver.switch_to.active_element.tag_name)
    assert {"effort", "send", "new-chat", "panel-toggle", "summary"} <= set(reached)
    page.one("#panel-toggle").send_keys(Keys.ENTER)
    page.one("#tab-request").send_keys(Keys.ARROW_RIGHT)
    assert page.focused() == "tab-tokens"
    assert page.one("#tab-tokens").get_attribute("aria-selected") == "true"


@pytest.mark.slow
def test_everything_that_is_used_has_a_name(scripted, opened) -> None:
    page = opened(scripted(CALL))
    page.fill("tools", TOOLS)
    page.say("Hi")
    used = {
        "button",
        "textbox",
        "combobox",
        "spinbutton",
        "checkbox",
        "tab",
        "log",
        "complementary",
        "article",
    }
    found = set()
    for tab in ("request", "tokens"):
        page.tab(tab)
        for node in page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]:
            role = node.get("role", {}).get("value")
            if role in used and not node["ignored"]:
                found.add(role)
                assert node["name"]["value"].strip(), node
    assert found == used


@pytest.mark.slow
def test_a_narrow_screen_shows_all_of_it(scripted, opened) -> None:
    page = opened(scripted(f"<|channel|>final<|message|>{'wide' * 100}<|return|>"))
    size = {"width": 360, "height": 640, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.say("x" * 200)
    width = "return document.querySelector(arguments[0]).scrollWidth"
    assert all(page.driver.execute_script(width, part) <= 360 for part in ("html", "#scroller"))
    assert page.one("#send").rect["y"] + page.one("#send").rect["height"] <= 640
    page.tab("tokens")
    page.wait(lambda: page.all(".token"))
    assert page.driver.execute_script(width, "#view-tokens") <= 360
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.one("#panel").is_displayed()
    assert page.focused() == "panel-toggle"
