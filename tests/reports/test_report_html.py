"""The page as text: whole, valid, escaped, and the same for the same records."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hostile import ATTACK, write_hostile
from hypothesis import given
from hypothesis import strategies as st
from study_on_disk import name_of, product_arms, write_plan, write_product

import reports
from reports.read.study import load_study
from reports.report import find
from reports.show.arm_details import differences
from reports.show.html import to_html, write_html
from reports.show.markup import css_string, element, escape
from reports.show.observed import png
from reports.show.sections import all_tables
from reports.show.seeds import SEEDS_CAPTION
from reports.show.style import VARIABLES
from reports.show.tables import label_rules

VOID = {"meta", "img", "br", "link"}
STUDY = "xl_recurrence"


class Outline(HTMLParser):
    """The tags, attributes and words of a page; fails where an element is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"<{tag}/> means nothing outside SVG"
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def values(self, name: str) -> list[str]:
        return [value or "" for attribute, value in self.attributes if attribute == name]


def page_of(runs: Path) -> str:
    findings = find(load_study(runs, STUDY))
    return to_html(findings, all_tables(findings), ("How it is made.",))


def test_the_style_sheet_names_the_colours_of_the_figures() -> None:
    sheet = (Path(reports.__file__).parent / "show" / "page.css").read_text(encoding="utf-8")
    for colour, variable in VARIABLES.items():
        name = variable.removeprefix("var(").removesuffix(")")
        assert re.search(rf"{name}: light-dark\({colour if name != '--plate' else '.*'},", sheet), name


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two by two factors, which no test changes."""
    runs = tmp_path_factory.mktemp("runs")
    write_product(runs, {"off": 0.1})
    return runs


@pytest.fixture(scope="module")
def product(runs: Path) -> str:
    """The page of that study."""
    return page_of(runs)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Outline:
    """The page of a study whose names are attacks."""
    runs = tmp_path_factory.mktemp("hostile")
    write_hostile(runs)
    return Outline(page_of(runs))


def test_the_heading_of_a_column_is_a_string_of_css_whatever_it_holds() -> None:
    assert css_string('p "x\\y"\nz') == r'"p \22 x\5c y\22 \a z"'
    page = '<table style="--column-2:&quot;p&quot;;--column-3:&quot;q&quot;">'
    assert label_rules(page) == "".join(f"td:nth-child({one}){{--label:var(--column-{one})}}" for one in (2, 3))
    assert label_rules("") == ""


def test_the_page_opens_with_the_question_and_its_answer(product: str) -> None:
    text = " ".join(Outline(product).words)
    order = [
        "Does segment recurrence help",
        "off against on: +0.1",
        "Learning curves",
        "Results, in bits per byte",
        "Paired differences",
        "Dai et al. 2019",
        "Measured on 2 CPU cores.",
        "3 of 3 seeds finished",
        "python -m ablations run xl_recurrence --scale demo",
        "How it is made.",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_every_mark_of_the_picture_is_within_its_strip(tmp_path: Path) -> None:
    """Seeds lie farther apart than the interval of their mean reaches."""
    write_product(tmp_path, {"off": 0.05}, seeds=6, noise=0.1)
    places = [float(place) for place in re.findall(r'(?:cx|x1|x2)="(-?[\d.]+)%"', page_of(tmp_path))]
    assert len(places) > 6 and min(places) >= 0 and max(places) <= 100


def test_it_needs_nothing_beside_itself(product: str) -> None:
    outline = Outline(product)
    assert not outline.tags["link"] and not outline.values("src")
    assert all(address.startswith(("#", "https://arxiv.org/")) for address in outline.values("href"))
    assert "default-src 'none'" in outline.values("content")[0]
    assert not re.search(r"@import|url\((?!#)|http-equiv=.refresh", product)


def test_no_identifier_stands_twice(product: str) -> None:
    identifiers = Outline(product).values("id")
    assert identifiers and len(identifiers) == len(set(identifiers))


def test_the_values_of_seeds_are_drawn_on_the_page(product: str) -> None:
    assert SEEDS_CAPTION in product


def test_figures_take_their_colours_from_the_page(product: str) -> None:
    figures = "".join(re.findall(r"<svg.*?</svg>", product, flags=re.DOTALL))
    assert "var(--series-1)" in figures
    assert set(re.findall(r"#[0-9a-f]{6}\b", figures)) == set()


def test_the_same_records_give_the_same_bytes(runs: Path, product: str, tmp_path: Path) -> None:
    findings = find(load_study(runs, STUDY))
    write_html(findings, all_tables(findings), tmp_path / "page.html", ("How it is made.",))
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == product


def test_a_study_of_which_nothing_has_run_has_a_page(tmp_path: Path) -> None:
    write_plan(tmp_path)
    page = page_of(tmp_path)
    Outline(page)
    assert "No arm finished" in page and "0 of 12 runs finished" in page
    assert "<svg" not in page and ">Learning curves<" not in page


@pytest.mark.slow
def test_no_name_is_more_than_text(hostile: Outline) -> None:
    assert hostile.tags["script"] == 1
    assert not [name for name, _ in hostile.attributes if name.startswith("on")]
    assert f"Does {ATTACK} help?" in hostile.words
    assert "\x00" not in "".join(hostile.words)


@pytest.mark.slow
def test_a_map_whose_bytes_are_too_few_is_left_away(hostile: Outline) -> None:
    pictures = hostile.values("src")
    assert len(pictures) == 6  # one for each arm that finished, of the two maps that it tells


def test_the_paths_in_which_configs_differ_are_told_with_both_values() -> None:
    base_config = {"model": {"mixer": {"memory": 32}, "dim": 64}, "seed": 0}
    other_config = {"model": {"mixer": {"memory": 0, "window": [1, 2]}, "dim": 64}, "seed": 1}
    assert list(differences(base_config, other_config)) == [
        ("model.mixer.memory", "32", "0"),
        ("model.mixer.window", "not there", "[1, 2]"),
    ]


def test_each_arm_is_named_where_its_details_are(product: str) -> None:
    arm_names = re.findall(r"<details><summary><bdi>(.*?)</bdi>", product)
    assert arm_names == [name_of(levels) for levels in product_arms()]


@given(st.text(), st.text())
def test_any_text_comes_back_out_of_an_element(text: str, title: str) -> None:
    outline = Outline(element("p", text, title=title))
    assert outline.tags == {"p": 1}
    displayed_text = "".join(outline.words)
    assert displayed_text.replace("\r", "") == "".join(escaped_and_back(text)).replace("\r", "")


def escaped_and_back(text: str) -> str:
    import html

    return html.unescape(escape(text))


def test_an_image_has_as_many_levels_as_it_was_given() -> None:
    from io import BytesIO

    from matplotlib.image import imread

    image = imread(BytesIO(png(2, bytes([0, 64, 128, 255]))), format="png")
    assert image.shape == (2, 2, 4)
    assert [round(float(alpha) * 255) for alpha in image[..., 3].flat] == [0, 64, 128, 255]
