"""A headless Chromium, and the page in it as a user sees it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

BROWSER, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
"""Of Debian's packages chromium and chromium-driver."""

_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1280,860"
)
_SECONDS = 60
"""How long a condition is waited for."""


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with an empty profile, which logs its console and its requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in (*_OPTIONS.split(), f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of one server."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url
        self._requests: list[str] = []
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(url)
        self.wait(lambda: self.one("#model").text or self.one("#key-error").text)

    def wait(self, condition: Callable[[], Any]) -> Any:
        """What the condition gives, once it gives something."""
        return WebDriverWait(self.driver, _SECONDS, 0.05).until(lambda _: condition())

    def all(self, selector: str) -> list[WebElement]:
        found: list[WebElement] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The whole text of an element, whether it is seen or not."""
        return str(self.one(selector).get_property("textContent"))

    def say(self, text: str, *, wait: bool = True) -> None:
        """Sends a message; with `wait`, until its turn has ended."""
        turns = len(self.all(".note, .failed"))
        self.one("#message").send_keys(text + Keys.ENTER)
        if wait:
            self.wait(lambda: len(self.all(".note, .failed")) > turns)

    def tab(self, name: str) -> None:
        """Opens the panel with one of its tabs."""
        if not self.one("#panel").is_displayed():
            self.one("#panel-toggle").click()
        self.one(f"#tab-{name}").click()

    def fill(self, field: str, text: str) -> None:
        """Types into a field of the request."""
        self.tab("request")
        self.one(f"#{field}").clear()
        self.one(f"#{field}").send_keys(text)

    def texts(self, selector: str) -> list[str]:
        """The texts of elements, all at the same moment."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    def token_ids(self) -> list[int]:
        """The ids of the tokens in the panel."""
        script = "return [...document.querySelectorAll('.token')].map((one) => Number(one.dataset.id))"
        found: list[int] = self.driver.execute_script(script)
        return found

    def focused(self) -> str:
        """The id of the element that has the focus."""
        return str(self.driver.switch_to.active_element.get_attribute("id"))

    def console(self) -> list[str]:
        """What the page's console says, but for advice."""
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] != "DEBUG"]

    def requests(self) -> list[str]:
        """The addresses that the page has asked."""
        for line in self.driver.get_log("performance"):
            event = json.loads(line["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                self._requests.append(event["params"]["request"]["url"])
        return self._requests
