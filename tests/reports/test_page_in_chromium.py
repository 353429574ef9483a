"""The page as a reader meets it: opened from disk in Chromium, clicked, narrowed, and turned dark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hostile import NAMES, write_hostile
from study_on_disk import name_of, product_arms, write_product

from reports.gallery import to_gallery_html
from reports.judge.agreement import GalleryEntry, judge_comparisons
from reports.read.study import load_study
from reports.report import find
from reports.show.html import write_html
from reports.show.sections import all_tables

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]
ON, _, OFF, _ = map(name_of, product_arms())
SOURCE = {"protocol": "p", "metric": "perplexity", "cells": [{"arm": ON, "value": 26.8}, {"arm": OFF, "value": 29.0}]}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]


class Opened(NamedTuple):
    """A page, the URLs that it requested, and its console messages and errors."""

    page: Any
    requests: list[str]
    complaints: list[str]


class Browser:
    """Opens pages, and records the requests of each."""

    def __init__(self, chromium: Any) -> None:
        self.chromium = chromium

    def open(self, path: Path, width: int = 1100, scheme: str = "light") -> Opened:
        page = self.chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened = Opened(page, [], [])
        page.on("request", lambda request: opened.requests.append(request.url))
        page.on("console", lambda message: opened.complaints.append(message.text))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.goto(path.as_uri())
        return opened


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    """The browser that all tests share, whose pages are closed after each."""
    yield Browser(chromium)
    for context in chromium.contexts:
        context.close()


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("product")
    write_product(runs, {"off": 0.12, "absolute": 0.03})
    return write_page(runs)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("hostile")
    write_hostile(runs)
    return write_page(runs)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of two studies of one system, one of which disagrees with its source, and one without a source."""
    runs = tmp_path_factory.mktemp("gallery")
    contrasts = [{"name": "recurrence on vs off", "arm": ON, "against": OFF}]
    entries = []
    for name, effect, source in (("first", 0.2, SOURCE), ("second", -0.2, SOURCE), ("third", 0.0, None)):
        changes = {"published": SOURCE} if source else {"source": None}
        write_product(runs, {"off": effect}, study=name, contrasts=contrasts, **changes)
        findings = find(load_study(runs, name))
        entries.append(GalleryEntry(name, findings, tuple(judge_comparisons(findings))))
    path = runs / "index.html"
    path.write_text(to_gallery_html(entries), encoding="utf-8")
    return path


def write_page(runs: Path) -> Path:
    path = runs / "page with spaces.html"
    findings = find(load_study(runs, "xl_recurrence"))
    write_html(findings, all_tables(findings), path)
    return path


def unfold(page: Any) -> None:
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")


def column(page: Any, number: int) -> list[str]:
    cells = page.locator("table").first.locator(f"tbody tr > :nth-child({number})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Browser, product: Path) -> None:
    opened = browser.open(product)
    unfold(opened.page)
    opened.page.wait_for_load_state("networkidle")
    assert opened.requests == [product.as_uri()]
    assert opened.complaints == []


def test_the_page_may_not_speak_to_the_network(browser: Browser, product: Path) -> None:
    page = browser.open(product).page
    assert page.evaluate("fetch('https://example.org').then(() => 'reached', () => 'refused')") == "refused"


def test_a_click_sorts_numbers_by_size_and_another_turns_them(browser: Browser, product: Path) -> None:
    page = browser.open(product).page
    table = page.locator("table").first
    heading = table.locator("thead th").nth(1)
    heading.locator("button").click()
    rising = [float(text.partition(" ")[0]) for text in column(page, 2)]
    assert rising == sorted(rising) and len(set(rising)) == 4
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").click()
    assert [float(text.partition(" ")[0]) for text in column(page, 2)] == rising[::-1]
    assert heading.get_attribute("aria-sort") == "descending"


def test_a_key_sorts_names_and_one_column_alone_is_marked(browser: Browser, product: Path) -> None:
    page = browser.open(product).page
    headings = page.locator("table").first.locator("thead th")
    headings.nth(1).locator("button").click()
    headings.nth(0).locator("button").focus()
    page.keyboard.press("Enter")
    names = column(page, 1)
    assert names == sorted(names)
    assert [headings.nth(n).get_attribute("aria-sort") for n in range(3)] == ["ascending", None, None]


def test_gaps_stay_at_the_end_whichever_way_a_column_is_sorted(browser: Browser, hostile: Path) -> None:
    page = browser.open(hostile).page
    button = page.locator("table").first.locator("thead th button").nth(1)
    for _ in range(2):
        button.click()
        assert column(page, 2)[-1].startswith("failed")


def test_a_figure_fills_the_screen_and_escape_puts_it_back(browser: Browser, product: Path) -> None:
    page = browser.open(product, 2400).page
    unfold(page)
    figure = page.locator("#figure-learning_curves")
    size = "drawn => [drawn.clientWidth, drawn.clientHeight]"
    before = figure.locator("svg").evaluate(size)
    figure.locator("button").click()
    dialog = page.locator("dialog")
    assert dialog.get_attribute("open") is not None
    assert dialog.locator("svg").evaluate(size)[0] > 1.4 * before[0]
    page.keyboard.press("Escape")
    assert dialog.get_attribute("open") is None
    assert figure.locator("svg").evaluate(size) == before
    assert page.evaluate("document.activeElement.className") == "zoom"


def test_a_figure_is_closed_by_its_button_too(browser: Browser, product: Path) -> None:
    page = browser.open(product).page
    unfold(page)
    page.locator("#figure-learning_curves button").click()
    page.locator("dialog .close").click()
    assert page.locator("dialog").get_attribute("open") is None
    assert page.locator("#figure-learning_curves svg").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "texts"), [("product", 100), ("gallery", 60)])
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Browser, request: pytest.FixtureRequest, name: str, texts: int, scheme: str
) -> None:
    page = browser.open(request.getfixturevalue(name), scheme=scheme).page
    unfold(page)
    ratios = page.evaluate(CONTRASTS)
    assert len(ratios) > texts
    assert min(ratio for ratio, _ in ratios) >= 4.5, sorted(ratios)[:3]


CONTRASTS = r"""() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    context.clearRect(0, 0, 1, 1); context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("main :not(title), header *")) {
    if (![...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim())) continue;
    const style = getComputedStyle(node);
    const [one, two] = [light(rgb(node instanceof SVGElement ? style.fill : style.color)), light(behind(node))];
    found.push([(Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05), node.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


def test_the_reader_may_choose_light_or_dark(browser: Browser, product: Path) -> None:
    page = browser.open(product).page
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    light = page.evaluate(colours)
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(colours)
    assert brightness(dark[0]) < 60 < 200 < brightness(light[0])
    assert brightness(light[1]) < 60 < 200 < brightness(dark[1])
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(colours) == light


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


@pytest.mark.parametrize(("name", "width"), [("product", 1100), ("product", 360), ("hostile", 360), ("gallery", 390)])
def test_the_page_never_scrolls_sideways(
    browser: Browser, request: pytest.FixtureRequest, name: str, width: int
) -> None:
    page = browser.open(request.getfixturevalue(name), width).page
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_wide_table_scrolls_in_its_own_box_and_is_cards_on_a_phone(browser: Browser, product: Path) -> None:
    widths = "box => [box.scrollWidth, box.clientWidth]"
    content_width, visible_width = browser.open(product, 600).page.locator(".scroll").nth(1).evaluate(widths)
    assert content_width > visible_width
    page = browser.open(product, 390).page
    table = page.locator("table").first
    assert table.evaluate(widths)[0] <= 390 and not table.locator("thead").is_visible()
    label = "cell => getComputedStyle(cell, '::before').content"
    assert table.locator("td").first.evaluate(label) == '"Mean ± standard deviation"'


@pytest.mark.parametrize("width", [1280, 390])
def test_the_first_screen_has_the_verdicts(browser: Browser, product: Path, width: int) -> None:
    page = browser.open(product, width).page
    first = page.locator(".row .verdict").first
    assert first.inner_text() == "worse" and first.bounding_box()["y"] < 844
    assert page.locator(".row .name").first.bounding_box()["x"] >= 0
    interval = page.locator(".row .interval").first
    assert re.fullmatch(r"95 % interval: \S+ to \S+", interval.locator("title").text_content())
    assert page.locator(".row").first.get_attribute("aria-label").startswith("recurrence: off against on: +0.12")
    assert page.locator(".row").first.locator(".seed").count() == 3


def test_choices_hide_the_studies_without_this_verdict_or_agreement(browser: Browser, gallery: Path) -> None:
    opened = browser.open(gallery)
    page, verdict, agreement = opened.page, *opened.page.locator("select").all()
    assert page.locator("article:visible a.name").all_inner_texts() == ["first", "second", "third"]
    agreement.select_option("disagrees")
    assert (
        page.locator("article:visible a.name").all_inner_texts() == ["second"]
        and page.locator("output").inner_text() == "1 of 3 studies"
    )
    assert page.locator(".system h3:visible").all_inner_texts() == ["Transformer-XL"]
    verdict.select_option("better")
    assert page.locator("article:visible a.name").all_inner_texts() == []
    agreement.select_option("")
    assert page.locator("article:visible a.name").all_inner_texts() == ["first"]
    page.get_by_role("link", name="Disagreements").click()
    assert page.locator("details", has_text="Disagreements").first.get_attribute("open") is not None
    assert opened.complaints == []


def test_the_row_of_a_study_is_three_lines_on_a_phone(browser: Browser, gallery: Path) -> None:
    row = browser.open(gallery, 390).page.locator(".study .row:not(.axis)").first
    name, strip, effect, verdict = (
        row.locator(f".{part}").bounding_box() for part in ("name", "strip", "effect", "verdict")
    )
    assert row.bounding_box()["height"] < 90 and strip["width"] > 120
    assert name["y"] < strip["y"] and verdict["y"] < effect["y"] and abs(strip["y"] - effect["y"]) < 20


def test_hostile_names_are_shown_and_do_nothing(browser: Browser, hostile: Path) -> None:
    opened = browser.open(hostile)
    unfold(opened.page)
    opened.page.mouse.move(300, 300)
    assert opened.page.evaluate("window.broken") is None
    assert opened.requests == [hostile.as_uri()]
    assert opened.complaints == []
    names = column(opened.page, 1)
    assert len(names) == len(NAMES)
    assert names[1] == f"arm={NAMES[1]}" and names[3] == f"arm={NAMES[3]}" and names[5] == f"arm={NAMES[5]}"


def test_a_script_that_got_in_would_not_run(browser: Browser, product: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    text = product.read_text(encoding="utf-8")
    path.write_text(text.replace("<main>", "<main><script>window.broken=1</script><img src=x onerror=window.broken=2>"))
    opened = browser.open(path)
    assert opened.page.evaluate("window.broken") is None
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)


def test_without_scripts_all_is_still_there(browser: Browser, product: Path, gallery: Path) -> None:
    context = browser.chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(product.as_uri())
    assert page.locator("h1").inner_text().startswith("Does segment recurrence help")
    assert page.locator("svg").count() >= 2
    assert not page.locator("button.theme").is_visible()
    page.goto(gallery.as_uri())
    assert page.locator("article:visible").count() == 3 and not page.locator("select").first.is_visible()
    context.close()
