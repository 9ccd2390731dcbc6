"""The page of a run in headless Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gptoss_jax.evals.report import write_report
from tests.evals import made_runs
from tests.evals.test_page import EVIL, RUN, rows_saying, run_saying

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By

    from tests.page import browsing
except ImportError:
    pytest.skip("selenium is not installed", allow_module_level=True)
if not (browsing.BROWSER.exists() and browsing.DRIVER.exists()):
    pytest.skip("there is no /usr/bin/chromium with its chromedriver", allow_module_level=True)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with browsing.chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def opened(driver: webdriver.Chrome, path: Path) -> str:
    """Opens the page of a run. Returns its address."""
    write_report(path)
    url = path.with_suffix(".html").as_uri()
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(url)
    return url


def seen(driver: webdriver.Chrome, selector: str) -> int:
    """How many elements are seen."""
    return sum(one.is_displayed() for one in driver.find_elements(By.CSS_SELECTOR, selector))


def test_hostile_text_does_nothing_and_asks_nobody(driver: webdriver.Chrome, tmp_path: Path) -> None:
    url = opened(driver, made_runs.write(tmp_path / "out.jsonl", rows_saying(EVIL), **run_saying(EVIL)))
    driver.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert driver.execute_script("return window.hit === undefined")
    assert driver.find_elements(By.CSS_SELECTOR, "script, img, .say *") == []
    said = driver.find_element(By.CSS_SELECTOR, ".say").get_property("textContent")
    assert "<script>window.hit=1</script>" in str(said)
    assert driver.get_log("browser") == []
    events = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert asked <= {url}


def test_a_mark_opens_its_attempt_and_filters_narrow_the_list(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    rows = [
        made_runs.row("p", 0),
        made_runs.row("p", 1, 0.0),
        made_runs.row("q", 0),
        made_runs.cut("q", 1),
        made_runs.row("r", 0),
        made_runs.row("r", 1),
    ]
    opened(driver, made_runs.write(tmp_path / "out.jsonl", rows, **RUN))
    assert (seen(driver, ".problem"), seen(driver, ".attempt")) == (3, 0)
    driver.find_elements(By.CSS_SELECTOR, ".problem .marks a")[1].click()
    assert (seen(driver, ".attempt"), seen(driver, ".body")) == (2, 1)
    assert driver.find_element(By.CSS_SELECTOR, ":target").is_displayed()
    driver.find_element(By.CSS_SELECTOR, "label[for=show-wrong]").click()
    assert (seen(driver, ".problem"), seen(driver, ".attempt")) == (1, 1)
    driver.find_element(By.CSS_SELECTOR, "label[for=show-cut]").click()
    assert (seen(driver, ".problem"), seen(driver, ".attempt")) == (1, 0)
    driver.find_element(By.CSS_SELECTOR, "label[for=show-all]").click()
    assert seen(driver, ".problem") == 3
