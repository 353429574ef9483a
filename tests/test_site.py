"""The site is built without a warning, none of its links leads nowhere, and a browser shows it from the file system."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from ablations import catalog
from docs import reference, site
from docs.pictures import TERMINAL, terminal_svg
from lit_transformers.json_schema import config_schema
from lit_transformers.mixers import MIXERS
from lit_transformers.runs import RunConfig
from lit_transformers.stacks import STACKS
from lit_transformers.tasks import TASKS
from reports.gallery import write_site
from reports.show.html import ParentPage

ROOT = Path(__file__).parents[1]
IN_GALLERY = ("dilation", "top_k")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]

pytestmark = pytest.mark.first


class Links(HTMLParser):
    """The addresses that a page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "data") and value and not value.startswith("data:"):
                self.addresses.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@cache
def links(path: Path) -> Links:
    return Links(path.read_text(encoding="utf-8"))


def broken(folder: Path) -> Iterator[str]:
    """Yields every link of a site that leads to no file or no anchor of it, or that a page loads from elsewhere."""
    for page in sorted(folder.rglob("*.html")):
        for address in links(page).addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.is_file():
                yield f"{page.relative_to(folder)}: {address}"
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in links(target).anchors:
                yield f"{page.relative_to(folder)}: {address} has no such anchor"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site, with two studies in its gallery."""
    folder, published = tmp_path_factory.mktemp("the site"), tmp_path_factory.mktemp("published")
    for name in IN_GALLERY:
        shutil.copytree(ROOT / "published" / name, published / name)
    write_site(published, folder / site.GALLERY, parent=ParentPage("Documentation", "../index.html"))
    site.build(folder, ROOT)
    return folder


@pytest.mark.slow
def test_every_link_leads_somewhere(built: Path) -> None:
    assert not list(broken(built))
    pages = {path.relative_to(built).as_posix() for path in built.rglob("*.html")}
    assert {"index.html", "docs/quick_start.html", "docs/glossary.html", "published/everything/report.html"} <= pages
    for name in IN_GALLERY:
        address = f"../../gallery/{name}/page.html"
        assert address in links(built / "published" / name / "report.html").addresses
        assert "../index.html" in links(built / "gallery" / name / "page.html").addresses
    assert "../index.html" in links(built / "gallery" / "index.html").addresses


@pytest.mark.slow
def test_a_link_that_leads_nowhere_is_noticed(built: Path, tmp_path: Path) -> None:
    shutil.copy(built / "docs" / "glossary.html", tmp_path / "there.html")
    (tmp_path / "index.html").write_text('<a href="there.html#no">a</a> <a href="none.html">b</a>')
    faults = [fault for fault in broken(tmp_path) if fault.startswith("index.html")]
    assert faults == ["index.html: there.html#no has no such anchor", "index.html: none.html"]


@pytest.mark.slow
def test_a_page_loads_nothing_from_elsewhere(built: Path) -> None:
    for page in built.rglob("*.html"):
        text = re.sub(r"<a [^>]*>", "", page.read_text(encoding="utf-8"))
        assert not re.search(r"""(?:src|href|data)=["']?https?:""", text), page
    for style in (*built.rglob("*.css"), *built.rglob("*.svg")):
        assert not re.search(r"url\(.?https?:|@import", style.read_text(encoding="utf-8")), style


def test_the_reference_has_every_field_of_every_config_with_its_default() -> None:
    text = "\n".join(reference.config_pages().values())
    for name, definition in config_schema(RunConfig)["$defs"].items():
        assert f"(config-{name})=" in text
        section = text.partition(f"(config-{name})=")[2].partition("\n(config-")[0]
        for field in definition.get("properties", {}).keys() - {"kind"}:
            assert f"\n`{field}`\n: " in section, f"{name}.{field}"
    window = text.partition("(config-WindowConfig)=")[2].partition("\n(config-")[0]
    assert re.search(r"`window`\n: .*keys that a query sees on each side.* default `128`", window)


def test_the_reference_of_commands_has_every_option() -> None:
    text = reference.command_page("ablations")
    assert re.search(r"## `run`\n\n```text\npython -m ablations run \[OPTIONS\] STUDY", text)
    assert re.search(r"\n`STUDY`\n: A study's name", text)
    assert re.search(r"`--scale [^`]*`\n: demo: minutes on a CPU.*default: demo", text)
    assert "  # try a short run; it has a separate report" in text


def test_the_reference_has_every_mixer_with_its_promises() -> None:
    text = reference.mechanisms_page()
    assert "| [`window`](#config-WindowConfig) | yes | yes |  |  | yes |" in text
    assert "- `linformer` cannot be causal: every projected key is made of all positions" in text
    for kind in (*MIXERS, *TASKS, *STACKS):
        assert f"[`{kind}`](#config-" in text, kind


@pytest.mark.slow
def test_the_reference_has_every_study_with_its_question(built: Path) -> None:
    text = unescape(re.sub(r"<[^>]*>", "", (built / "reference" / "studies.html").read_text(encoding="utf-8")))
    for name in catalog.names():
        headline = catalog.headline(catalog.find(name))
        assert f"{name}\n{headline.question}\n{headline.source}" in text, name


def test_the_picture_of_the_terminal_is_that_of_what_is_published() -> None:
    """Its text; the library that draws it may change its shapes."""
    remedy = "draw it again by: python -m docs picture"
    assert words_of(terminal_svg(ROOT / "published")) == words_of((ROOT / TERMINAL).read_text(encoding="utf-8")), remedy


def words_of(svg: str) -> list[str]:
    return unescape(" ".join(re.findall(r"<text [^>]*>([^<]*)</text>", svg))).split()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    reason = "playwright is not installed: pip install playwright"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


SHOWN = (
    "index.html",
    "docs/quick_start.html",
    "docs/tutorials/statistics.html",
    "docs/architecture.html",
    "docs/glossary.html",
    "published/README.html",
    "published/everything/report.html",
    "reference/MixerConfig.html",
    "reference/mechanisms.html",
    "reference/studies.html",
    "reference/ablations.html",
)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_no_page_scrolls_sideways_and_nothing_is_complained_of(
    chromium: Any, built: Path, scheme: str
) -> None:
    page = chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for name in SHOWN:
        page.goto((built / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 390, name
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        level = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
        assert level > 200 if scheme == "light" else level < 60, name
    page.close()
    assert complaints == []


@pytest.mark.slow
def test_search_works_from_the_file_system(chromium: Any, built: Path) -> None:
    page = chromium.new_page()
    page.goto((built / "search.html").as_uri() + "?q=compressive")
    results = page.locator("ul.search li a")
    results.first.wait_for()
    assert any("MixerConfig" in (link.get_attribute("href") or "") for link in results.all())
    page.close()
