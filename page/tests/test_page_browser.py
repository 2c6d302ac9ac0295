"""The page in a browser, as a person uses it: Debian's chromium and chromium-driver, without a window."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collage_page import page
from drawn_report import HOSTILE, residual_report
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from collage_core.report.beside import beside_json
from collage_core.target import processor

pytestmark = pytest.mark.ci

_CHROMIUM, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_ANSWERS_WITHIN_S = 2.0 if processor().multiplies_int8 else 5.0
"""Older processors, which tests run on as well, are half as fast."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    if not (_CHROMIUM and _DRIVER):
        assert "CI" not in os.environ, "apt-get install chromium chromium-driver"
        pytest.skip("needs chromium and chromium-driver")
    options = ChromeOptions()
    options.binary_location = _CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with Chrome(options, Service(_DRIVER)) as driver:
        yield driver


def _open(browser: Chrome, folder: Path, content: str) -> float:
    """Seconds until it can be used."""
    file = folder / "report.html"
    file.write_text(content, encoding="utf-8")
    begun = time.monotonic()
    browser.get(file.as_uri())
    assert browser.execute_script("return collage.graphs.length") >= 1
    # A frame is drawn before this answers.
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    return time.monotonic() - begun


def _click(browser: Chrome, node: str, graph: int = 0) -> None:
    """On the canvas, where that node is drawn: in the middle, as if a person had moved there."""
    place = browser.execute_script(
        "const cy = collage.graphs[arguments[0]], node = cy.getElementById(arguments[1]);"
        "cy.zoom(1).center(node);"
        "const at = node.renderedPosition(), box = cy.container().getBoundingClientRect();"
        "return [box.left + at.x, box.top + at.y];",
        graph,
        node,
    )
    _click_at(browser, round(place[0]), round(place[1]))


def _click_at(browser: Chrome, x: int, y: int) -> None:
    actions = ActionChains(browser, duration=0)
    actions.w3c_actions.pointer_action.move_to_location(x, y)  # type: ignore[no-untyped-call]
    actions.w3c_actions.pointer_action.click()
    actions.perform()


def _shown(browser: Chrome) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, "section.detail:not([hidden])")


def _marked(browser: Chrome) -> list[set[str]]:
    """What is chosen, by graph."""
    told = browser.execute_script("return collage.graphs.map(cy => cy.nodes('.chosen').map(n => n.id()))")
    return [set(ids) for ids in told]


def _complaints(browser: Chrome) -> list[str]:
    log = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in log if entry["level"] == "SEVERE"]


def test_a_click_shows_the_group_with_its_rivals(browser: Chrome, tmp_path: Path) -> None:
    _open(browser, tmp_path, page(residual_report(2)))
    assert _shown(browser) == []
    _click(browser, "n1")
    (detail,) = _shown(browser)
    assert detail.text.startswith("Group 0: swift")
    assert "conv0 (Conv), relu0 (Relu)" in detail.text
    assert "rival 0.7500" in detail.text
    assert "absent - failed: it <crashed>" in detail.text
    assert _marked(browser) == [{"n1", "g0"}]
    _click(browser, "c0")
    (detail,) = _shown(browser)
    assert detail.text.startswith("Conversion 0")
    assert _complaints(browser) == []


def test_a_click_beside_them_shows_nothing(browser: Chrome, tmp_path: Path) -> None:
    _open(browser, tmp_path, page(residual_report(1)))
    _click(browser, "n1")
    assert _shown(browser)
    box = browser.find_element(By.ID, "graph-0").rect
    _click_at(browser, int(box["x"]) + 5, int(box["y"] + box["height"]) - 5)
    assert _shown(browser) == []
    assert browser.find_element(By.ID, "hint").is_displayed()


def test_a_search_finds_an_operator(browser: Chrome, tmp_path: Path) -> None:
    _open(browser, tmp_path, page(residual_report(30)))
    search = browser.find_element(By.ID, "search")
    search.send_keys("SIGMOID2")
    found = [b.text for b in browser.find_elements(By.CSS_SELECTOR, "#found button")]
    assert found[0] == "sigmoid2 (Sigmoid)"
    assert "sigmoid29 (Sigmoid)" in found
    search.send_keys(Keys.ENTER)
    (detail,) = _shown(browser)
    assert "sigmoid2 (Sigmoid)" in detail.text
    time.sleep(0.5)  # it moves there
    at, size = browser.execute_script(
        "const cy = collage.graphs[0];return [cy.nodes('#n10').renderedPosition(), [cy.width(), cy.height()]]"
    )
    assert abs(at["x"] - size[0] / 2) < 5
    assert abs(at["y"] - size[1] / 2) < 5
    search.clear()
    search.send_keys("GlobalAveragePool")
    (found_one,) = browser.find_elements(By.CSS_SELECTOR, "#found button")
    assert found_one.text == "pool (GlobalAveragePool)", "its label has no room for that"
    search.clear()
    search.send_keys("no such thing")
    assert browser.find_element(By.ID, "found").text == "no such operator"
    search.send_keys(Keys.ESCAPE)
    assert not browser.find_element(By.ID, "found").is_displayed()


@pytest.mark.alone
def test_a_thousand_operators_open_and_answer(browser: Chrome, tmp_path: Path) -> None:
    content = page(residual_report(260))
    # Whatever else the machine does only adds to it.
    opened_s = min(_open(browser, tmp_path, content) for _ in range(5))
    assert browser.execute_script("return collage.graphs[0].nodes(\"[kind = 'operator']\").length") == 1041
    begun = time.monotonic()
    search = browser.find_element(By.ID, "search")
    search.send_keys("relu259", Keys.ENTER)
    (detail,) = _shown(browser)
    answered_s = time.monotonic() - begun
    assert "relu259" in detail.text
    browser.find_element(By.ID, "fit").click()
    time.sleep(0.5)
    begun = time.monotonic()
    _click(browser, "n2")
    assert _shown(browser)
    clicked_s = time.monotonic() - begun
    print(f"opened in {opened_s:.2f} s, found in {answered_s:.2f} s, shown in {clicked_s:.2f} s")
    assert max(opened_s, answered_s, clicked_s) < _ANSWERS_WITHIN_S, (opened_s, answered_s, clicked_s)


def test_colours(browser: Chrome, tmp_path: Path) -> None:
    here, there = residual_report(2), residual_report(2, swift="careful")
    here["beside"] = beside_json(here, there, "before.collage")
    _open(browser, tmp_path, page(here, there))

    def colour(node: str) -> str:
        told = browser.execute_script(
            f"return collage.graphs[0].getElementById('{node}').style('background-color')"
        )
        return str(told)

    by_backend, operator = colour("g0"), colour("n0")
    choice = Select(browser.find_element(By.ID, "colour"))
    choice.select_by_value("time")
    assert colour("g0") not in (by_backend, colour("g1"))
    choice.select_by_value("moved")
    assert colour("g0") == by_backend
    assert colour("n0") != operator == colour("n2")


def test_the_same_operator_is_marked_in_both(browser: Chrome, tmp_path: Path) -> None:
    here, there = residual_report(2), residual_report(2, swift="careful")
    here["beside"] = beside_json(here, there, "before.collage")
    _open(browser, tmp_path, page(here, there))
    _click(browser, "n4", graph=1)
    (detail,) = _shown(browser)
    assert detail.text.startswith("Group 3: careful")
    assert _marked(browser) == [{"n4", "g3"}] * 2


def test_a_name_is_not_obeyed(browser: Chrome, tmp_path: Path) -> None:
    _open(browser, tmp_path, page({**residual_report(1, hostile=True), "model": HOSTILE}))
    assert browser.title.startswith("</script>")
    search = browser.find_element(By.ID, "search")
    search.send_keys("document.title", Keys.ENTER)
    (detail,) = _shown(browser)
    assert HOSTILE in detail.text
    assert _complaints(browser) == []
