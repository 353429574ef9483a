"""Publishing studies, and the index that shows them next to their sources."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_on_disk import key_of, name_of, product_arms, write_json, write_product

from ablations.__main__ import main as ablations_main
from lit_transformers.records.files import RESULTS
from lit_transformers.records.plan import Source
from reports.__main__ import main
from reports.gallery import read_entries, read_entry, to_gallery_html, to_gallery_markdown, write_gallery, write_site
from reports.judge.agreement import GalleryEntry, judge_comparisons
from reports.judge.effects import RelativeEffect, relative_effect, relative_effects
from reports.judge.systems import system_of
from reports.publish import publish, published
from reports.read.results import read_results, write_results
from reports.read.study import ReportError, load_study
from reports.report import find, markdown, render
from reports.show.effects import draw_effects
from reports.show.overview import answers, findings_of, further, not_judged, open_comparisons

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())
PNGS = ("differences.png", "learning_curves.png", "seeds.png")
CONTRAST = [{"name": "recurrence on vs off", "arm": ON, "against": OFF}]


def published_source(on: float | None, off: float | None, metric: str = "perplexity") -> dict[str, Any]:
    """Returns the numbers that a source has printed for two arms, and its claim."""
    cells = [{"arm": arm, "value": value} for arm, value in ((ON, on), (OFF, off)) if value is not None]
    return {"protocol": "WikiText-103", "metric": metric, "cells": cells, "claims": ["Recurrence <helps>."]}


def agreement(runs: Path, effect: float, **changes: Any) -> str:
    """Returns how the one contrast agrees with its source, where ``off`` costs ``effect`` bits per byte."""
    write_product(runs, {"off": effect}, contrasts=CONTRAST, **changes)
    [judgement] = judge_comparisons(find(load_study(runs, "xl_recurrence")))
    return judgement.agreement


@pytest.mark.parametrize(
    ("effect", "on", "off", "metric", "expected"),
    [
        (0.2, 26.8, 29.0, "perplexity", "agrees"),
        (-0.2, 26.8, 29.0, "perplexity", "disagrees"),
        (0.2, 26.8, 29.0, "BLEU", "disagrees"),
        (0.2, 29.0, 26.8, "accuracy", "agrees"),
        (0.0, 26.8, 29.0, "perplexity", "unresolved"),
        (0.2, 26.8, 26.8, "perplexity", "disagrees"),
        (0.0, 26.8, 26.8, "perplexity", "unresolved"),
        (0.2, 26.8, None, "perplexity", "no published number"),
        (0.2, 26.8, 29.0, "happiness", "no published number"),
    ],
)
def test_a_verdict_agrees_where_it_goes_in_the_direction_of_the_source(
    tmp_path: Path, effect: float, on: float, off: float | None, metric: str, expected: str
) -> None:
    assert agreement(tmp_path, effect, published=published_source(on, off, metric)) == expected


def test_a_study_without_a_source_has_no_published_number(tmp_path: Path) -> None:
    assert agreement(tmp_path, 0.2, published=None) == "no published number"


def test_an_arm_of_which_the_source_prints_two_numbers_has_none(tmp_path: Path) -> None:
    source = published_source(26.8, 29.0)
    source["cells"].append({"arm": ON, "value": 30.0, "note": "another size"})
    assert agreement(tmp_path, 0.2, published=source) == "no published number"


def test_main_effects_that_a_study_names_are_its_comparisons(tmp_path: Path) -> None:
    cells = [{"arm": arm, "value": 26.8 + (arm in (OFF, OFF_ABSOLUTE))} for arm in (ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE)]
    source = published_source(None, None) | {"cells": cells}
    plan = write_product(tmp_path, {"off": 0.2}, contrasts=None, published=source)
    write_json(tmp_path / "studies/xl_recurrence/plan.json", plan | {"effects": ["recurrence"]})
    findings = find(load_study(tmp_path, "xl_recurrence"))
    entry = GalleryEntry("xl_recurrence", findings, tuple(judge_comparisons(findings)))
    name = "recurrence: off against on"
    assert [(judged.comparison.name, judged.agreement) for judged in entry.judged] == [(name, "agrees")]
    assert name in to_gallery_markdown([entry]).split("## Unresolved")[0]
    [effect] = relative_effects([entry])[0]
    on, off = (
        np.mean([findings.study.mean_of(arm) for arm in arms]) for arms in ((ON, ON_ABSOLUTE), (OFF, OFF_ABSOLUTE))
    )
    assert effect.ours == pytest.approx(100 * (1 - off / on)), "relative to the mean of the arms compared with"
    assert effect.published == pytest.approx(100 * (1 - math.log(27.8) / math.log(26.8)))


def test_what_did_not_run_is_unresolved(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.2}, contrasts=CONTRAST, published=published_source(26.8, 29.0))
    for seed in range(3):
        (tmp_path / key_of(OFF, seed) / "record.json").unlink()
    [judgement] = judge_comparisons(find(load_study(tmp_path, "xl_recurrence")))
    assert judgement.agreement == "unresolved" and judgement.published == -2.2


def test_the_goal_of_a_published_metric_is_stated_and_never_guessed_from_a_part_of_its_name(tmp_path: Path) -> None:
    def agreement(metric: str, **stated: Any) -> str:
        source = published_source(26.8, 29.0) | {"metric": metric} | stated
        write_product(tmp_path, {"off": 0.2}, contrasts=CONTRAST, published=source)
        [judgement] = judge_comparisons(find(load_study(tmp_path, "xl_recurrence")))
        return judgement.agreement

    assert agreement("EM", goal="minimize") == agreement("exact match", goal="minimize") == "agrees"
    assert agreement("EM", goal="maximize") == agreement("WER", goal="maximize") == "disagrees"
    assert agreement("perplexity") == "agrees", "of a plan from before goals were stated"
    assert agreement("GLUE average") == "disagrees", "which was published before goals were stated"
    assert agreement("accuracy of guesses") == agreement("EM") == "no published number"


class SameThread(Executor):
    """Calls each function when it is submitted: Matplotlib is not made for several threads."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **options))
        return future


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the files of figures empty, for tests of the other parts of a publication: drawing takes most of its
    time."""
    monkeypatch.setattr("reports.show.figures._save", lambda figure, path: path.touch())
    monkeypatch.setattr("reports.gallery.ProcessPoolExecutor", lambda *_: SameThread())  # which sees that


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two studies of one system and of one study without a source."""
    runs = tmp_path_factory.mktemp("runs")
    folder = runs / "published"
    for name, effect, changes in (
        ("xl_recurrence", 0.2, {"published": published_source(26.8, 29.0)}),
        ("second_study", -0.2, {"published": published_source(26.8, 29.0)}),
        ("third_study", 0.0, {"source": None, "question": "What of <b>nothing</b> & $x$?"}),
    ):
        write_product(runs, {"off": effect}, study=name, contrasts=CONTRAST, **changes)
        (folder / name).mkdir(parents=True)
        write_results(load_study(runs, name), folder / name / RESULTS)
    return folder


def section(text: str, title: str) -> str:
    """Returns the text of a section of a Markdown page."""
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_index_opens_with_what_was_decided_what_disagrees_and_what_is_open(folder: Path) -> None:
    entries = read_entries(folder)
    text, page = to_gallery_markdown(entries), to_gallery_html(entries)
    titles = ["Findings", "Studies", "Disagreements", "Unresolved", "Not judged", "Effects and published effects"]
    assert [title for title in re.findall(r"^## (.*)", text, re.MULTILINE) if title in titles] == [
        title for title in titles if title != "Not judged"
    ]
    decided = section(text, "Findings")
    name = r"\[xl\\_recurrence\]\(xl_recurrence/report.md\) \(Transformer-XL\): recurrence on vs off: "
    rest = r"\*\*better by 7\.\d+ %\*\*, -0\.\d+ \(-0\.\d+ to -0\.\d+\) bits per byte, .*; the source agrees \(-2\.2 "
    assert re.search(name + rest, decided) and "second\\_study" in decided and "third\\_study" not in decided
    assert decided.count("\n1. ") == decided.count("\n2. ") == 1 and "\n3. " not in decided
    against = section(text, "Disagreements")
    assert "[second\\_study](second_study/report.md): recurrence on vs off" in against
    assert "The source: -2.2 perplexity. Here: +0." in against and "Not looked into yet." in against
    assert against.count("**[") == 1 and "third\\_study" in section(text, "Unresolved")
    assert page.count("Not looked into yet.") == 1 and page.count('<article class="study"') == 3
    assert page.index(">Findings<") < page.index("<select") < page.index("<article") < page.index("<details")
    assert '<a href="xl_recurrence/page.html">' in page


def entry_of(runs: Path, effect: float = 0.2, floor: float | None = None, **changes: Any) -> GalleryEntry:
    """Returns a study of two by two factors, where ``off`` costs ``effect`` bits per byte."""
    write_product(runs, {"off": effect}, **changes)
    if floor is not None:
        values = {"key": key_of(ON, 0), "values": [{"name": "pairs", "value": floor}], "reason": ""}
        write_json(runs / "studies/xl_recurrence/floors.json", values)
    findings = find(load_study(runs, "xl_recurrence"))
    return GalleryEntry("xl_recurrence", findings, tuple(judge_comparisons(findings)))


def test_findings_are_of_studies_that_could_answer_and_others_are_not_judged_with_the_reason(tmp_path: Path) -> None:
    able, unable = (entry_of(tmp_path, floor=floor, contrasts=CONTRAST) for floor in (3.6, 2.4))
    [finding] = findings_of([able], "report.md")
    assert (finding.verdict, finding.address) == ("better", "xl_recurrence/report.md")
    assert findings_of([unable], "report.md") == [] and [one.verdict for one in answers(unable)] == ["not judged"]
    [row] = not_judged([able, unable], "report.md").rows
    assert row[1].value == "every comparison" and str(row[2].value).startswith("Trained too little to answer: the")


def test_a_study_gives_one_finding_and_shows_its_clearest_answers_first_and_counts_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contrasts = [{"name": f"{other} vs on", "arm": other, "against": ON} for other in (ON_ABSOLUTE, OFF, OFF_ABSOLUTE)]
    cells = [{"arm": arm, "value": value} for arm, value in ((ON, 26.8), (OFF, 29.0))]
    source = {"protocol": "WikiText-103", "metric": "perplexity", "cells": cells}
    names = [str(contrast["name"]) for contrast in contrasts]
    entry = entry_of(tmp_path, contrasts=contrasts, published=source, answer=names)
    found = answers(entry)
    assert [one.name for one in found] == [names[1], names[2], names[0]], "with a published number comes first"
    assert further(found) == ""
    monkeypatch.setattr("reports.show.overview._MOST_ANSWERS", 1)
    assert further(found) == "further answers: 1 worse, 1 unresolved"
    again = replace(entry, name="xl_recurrence--hour")
    assert [one.comparison for one in findings_of([entry, again], "report.md")] == [names[1]]
    [row] = open_comparisons([entry], "report.md").rows
    assert [cell.value for cell in row[1:4]] == ["1 of 3", 3, names[0]]


def test_a_row_draws_the_interval_and_the_published_change_and_an_arrow_beyond_the_scale(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, contrasts=CONTRAST, published=published_source(4.0, 8.0))
    page = to_gallery_html([entry])
    assert "<title>published: +33.33 %</title>" in page and "▶" not in page
    low, high = map(float, re.findall(r"<title>95 % interval: \+([\d.]+) % to \+([\d.]+) %</title>", page)[0])
    assert low < 100 * 0.2 / 2.7 < high and 'data-verdicts="better" data-agreements="agrees"' in page
    other = entry_of(tmp_path, contrasts=CONTRAST, published=published_source(20.0, 18.0, "BLEU"))
    assert "<title>published: +11.11 %, another metric</title>" in to_gallery_html([other])
    turned = [{"name": "off vs on", "arm": OFF, "against": ON}]
    page = to_gallery_html([entry_of(tmp_path, effect=40.0, contrasts=turned)])
    assert page.count("◀") == 1 and "▶" not in page and 'class="mean"' not in page


def test_a_disagreement_is_explained_by_the_remark_of_its_study_in_index_and_report(tmp_path: Path) -> None:
    source = published_source(29.0, 26.8) | {"remarks": {"recurrence on vs off": "The scale: segments are short."}}
    entry = entry_of(tmp_path, contrasts=CONTRAST, published=source)
    for text in (to_gallery_markdown([entry]), markdown(entry.findings, (), {}), to_gallery_html([entry])):
        assert "The scale: segments are short." in text and "Not looked into yet" not in text
    entry = entry_of(tmp_path, contrasts=None, published=source | {"remarks": {OFF: "A fault."}})
    assert [judged.remark for judged in entry.judged] == [None, "A fault.", None]


REMARKED_STUDY = """
from ablations.ablation import Ablation, Metric, Published
from lit_transformers.config import Config

class Plain(Config):
    memory: int = 0

ABLATION = Ablation(
    question="Does it help?",
    baseline=Plain(),
    metric=Metric("val/bpb", goal="minimize"),
    design="explicit",
    arms={"recurrence=on positions=relative": {}, "recurrence=off positions=relative": {"memory": 1}},
    published=Published(
        protocol="p", metric="perplexity", remarks={"recurrence=off positions=relative": "The scale: lines are short."}
    ),
)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_remark_reaches_what_is_published_without_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_product(tmp_path, {"off": 0.2}, study="remarked", published=published_source(29.0, 26.8))
    publish(tmp_path, "remarked", tmp_path / "published")
    results = tmp_path / "published" / "remarked" / RESULTS
    before = results.read_text().splitlines()
    (tmp_path / "remarked.py").write_text(REMARKED_STUDY)
    command = ["remark", str(tmp_path / "remarked.py"), "--in", str(tmp_path / "published")]
    assert ablations_main(command) == 0
    assert "The scale: lines are short." in results.with_name("report.md").read_text()
    assert results.read_text().splitlines()[1:] == before[1:] and results.read_text().splitlines()[0] != before[0]
    results.write_text("\n".join([*before, "{"]))
    assert ablations_main(command) == 2 and "damaged; publish the study again" in capsys.readouterr().err


def effect_of(runs: Path, metric: str, on: float, off: float) -> RelativeEffect | str:
    entry = entry_of(runs, contrasts=CONTRAST, published=published_source(on, off, metric))
    return relative_effect(entry.name, entry.findings, entry.judged[0])


def test_effects_are_changes_in_per_cent_of_the_other_arm_and_perplexities_change_as_bits_do(tmp_path: Path) -> None:
    effect = effect_of(tmp_path, "perplexity", 4.0, 8.0)
    assert isinstance(effect, RelativeEffect) and effect.interval and effect.same_metric
    assert effect.published == pytest.approx(100 / 3), "of three bits there are two"
    assert effect.ours == pytest.approx(100 * 0.2 / 2.7, rel=0.1) and effect.interval.low < effect.ours
    assert effect.ours < effect.interval.high
    worse = effect_of(tmp_path, "BLEU", 18.0, 20.0)
    assert isinstance(worse, RelativeEffect) and worse.published == pytest.approx(-10) and not worse.same_metric
    unsized = effect_of(tmp_path, "accuracy", 0.5, 0.0)
    assert isinstance(unsized, RelativeEffect) and unsized.published is None
    _, [omitted] = relative_effects(
        [entry_of(tmp_path, contrasts=CONTRAST, published=published_source(0.5, 0.0, "accuracy"))]
    )
    assert omitted.endswith("(a change of a value that is not above zero has no size in per cent)")


def test_the_figure_of_effects_has_a_row_for_each_and_a_panel_for_other_metrics(tmp_path: Path) -> None:
    effects = [effect_of(tmp_path, metric, 18.0, 20.0) for metric in ("perplexity", "BLEU")]
    figure = draw_effects([effect for effect in effects if isinstance(effect, RelativeEffect)])
    names = [[label.get_text() for label in panel.get_yticklabels()] for panel in figure.axes]
    assert names == [["xl_recurrence", "recurrence on vs off"]] * 2
    assert [panel.get_xlim() for panel in figure.axes] == [figure.axes[0].get_xlim()] * 2


def test_two_papers_with_one_citation_are_two_systems() -> None:
    papers = [Source("Wang et al. 2020", arxiv=arxiv) for arxiv in ("2002.06170", "2006.04768", "0000.00000", None)]
    systems = ["Transformer on a Diet", "Linformer", "Wang et al. 2020", "Wang et al. 2020", "No source"]
    assert [system_of(source) for source in (*papers, None)] == systems


@pytest.mark.usefixtures("undrawn")
def test_the_index_counts_by_system_and_links_to_every_study(folder: Path, tmp_path: Path) -> None:
    text = write_gallery(folder).read_text()
    assert (folder / "effects.png").is_file() and "](effects.png)" in text
    page = write_site(folder, tmp_path)
    tally = "agrees 1, disagrees 1, unresolved 0, not judged 0, in another unit 0, no published number 1."
    assert f"3 studies, 3 comparisons: {tally}" in text
    rows = [line.split(" | ") for line in section(text, "Studies").splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == ["| Transformer-XL", "| ", "| No source"]
    assert [row[-1] for row in rows] == ["disagrees 1 |", "agrees 1 |", "- |"]
    for name in ("xl_recurrence", "second_study", "third_study"):
        assert f"({name}/report.md)" in text
        assert f'href="{name}/page.html"' in page.read_text() and (page.parent / name / "page.html").is_file()
    assert "-2.2" in text and "12 of 12 runs finished, 3 seeds, 2 CPU cores." in page.read_text()


@pytest.mark.slow
def test_reports_that_are_made_again_in_processes_are_those_of_one(folder: Path, tmp_path: Path) -> None:
    for again in ("here", "there"):
        shutil.copytree(folder, tmp_path / again, ignore=shutil.ignore_patterns("*.md", "*.png"))
    for directory in published(tmp_path / "here"):
        render(directory, publication=directory)
    names: list[str] = []
    pages = write_gallery(tmp_path / "here"), write_gallery(tmp_path / "there", True, names.append)
    assert names == ["second_study", "third_study", "xl_recurrence"]
    files = [{path.relative_to(page.parent): path.read_bytes() for path in page.parent.rglob("*.*")} for page in pages]
    assert files[0] == files[1] and Path("third_study/report.md") in files[1]


def end_process(directory: Path) -> None:
    """Ends the process that renders a study, as the kernel does where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def raise_for_third(directory: Path) -> GalleryEntry:
    """Raises an error that says nothing of the study, for one of them."""
    if directory.name == "third_study":
        raise ZeroDivisionError("division by zero")
    return read_entry(directory)


@pytest.mark.slow
def test_an_error_of_a_process_names_the_study(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reports.gallery._render_publication", raise_for_third)
    with pytest.raises(ZeroDivisionError) as raised:
        write_gallery(folder, again=True)
    assert raised.value.__notes__ == [f"This was raised while {folder / 'third_study'} was rendered."]
    monkeypatch.setattr("reports.gallery._render_publication", end_process)
    assert main(["gallery", "--render", "--in", str(folder)]) == 2
    message = capsys.readouterr().err
    assert f"error: {folder / 'second_study'}: a process was killed while it rendered this study" in message
    monkeypatch.undo()
    shutil.copytree(folder, tmp_path / "published")
    (tmp_path / "published" / "third_study" / RESULTS).write_text("{")
    assert main(["gallery", "--render", "--in", str(tmp_path / "published")]) == 2
    assert str(tmp_path / "published" / "third_study") in capsys.readouterr().err


def test_the_index_escapes_what_it_takes_over_and_is_the_same_each_time_it_is_made(folder: Path) -> None:
    indexes = [(to_gallery_html(entries), to_gallery_markdown(entries)) for entries in map(read_entries, [folder] * 2)]
    page, text = indexes[0]
    assert "<b>nothing</b>" not in page and "&lt;b&gt;nothing&lt;/b&gt;" in page and "Recurrence &lt;helps&gt;." in page
    assert "\\<b\\>nothing" in text
    assert indexes[0] == indexes[1]


@pytest.mark.usefixtures("undrawn")
def test_publishing_again_replaces_the_folder_whole(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.2})
    folder = tmp_path / "published"
    page = publish(tmp_path, "xl_recurrence", folder)
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"results.jsonl", "report.md", *PNGS}
    (page.parent / "stale.png").write_text("of an earlier report")
    publish(tmp_path, "xl_recurrence", folder)
    assert {path.name for path in page.parent.iterdir()} == names
    assert [path.name for path in folder.iterdir()] == ["xl_recurrence"] == [path.name for path in published(folder)]


@pytest.mark.usefixtures("undrawn")
def test_what_is_published_stays_where_the_new_report_cannot_be_made(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.2})
    page = publish(tmp_path, "xl_recurrence", tmp_path / "published")
    (tmp_path / "studies" / "xl_recurrence" / "plan.json").write_text("{")
    with pytest.raises(ReportError):
        publish(tmp_path, "xl_recurrence", tmp_path / "published")
    assert page.is_file()


@pytest.mark.usefixtures("undrawn")
def test_what_is_published_is_replaced_by_less_on_request_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_product(tmp_path, {"off": 0.2})
    arguments = ["publish", "xl_recurrence", "--runs", str(tmp_path), "--to", str(tmp_path / "published")]
    assert main(arguments) == 0
    results = tmp_path / "published" / "xl_recurrence" / "results.jsonl"
    before = results.read_bytes()
    (tmp_path / key_of(OFF, 2) / "record.json").unlink()
    capsys.readouterr()
    assert main(arguments) == 2 and results.read_bytes() == before
    message = capsys.readouterr().err
    assert "11 runs, 4 arms and 3 seeds have finished here, 12 runs, 4 arms and 3 seeds have finished there" in message
    assert main([*arguments, "--replace"]) == 0 and results.read_bytes() != before
    for record in tmp_path.glob("*/record.json"):
        record.unlink()
    before = results.read_bytes()
    assert main([*arguments, "--replace"]) == 2 and results.read_bytes() == before
    assert "none of its 12 runs has finished" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_another_scale_or_other_changes_are_published_beside_and_by_name(tmp_path: Path) -> None:
    plan = write_product(tmp_path, {"off": 0.2})
    published = tmp_path / "published"
    arguments = ["publish", "xl_recurrence", "--runs", str(tmp_path), "--to", str(published)]
    assert main(arguments) == 0
    folder = tmp_path / "studies" / "xl_recurrence--gpu--training.steps=50"
    write_json(folder / "plan.json", plan | {"scale": "gpu", "changes": {"training.steps": 50}})
    options = ["--scale", "gpu", "--set", "training.steps=50"]
    for command in ([*arguments, *options], ["publish", str(folder), *arguments[4:], "--replace"]):
        assert main(command) == 0
        assert read_results(published / folder.name / "results.jsonl").plan.scale == "gpu"
        assert read_results(published / "xl_recurrence" / "results.jsonl").plan.scale == plan["scale"]


def test_a_name_that_leads_out_of_its_folder_is_refused_by_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_product(tmp_path / "home" / "runs", {"off": 0.2})
    monkeypatch.chdir(tmp_path / "home")
    for name in ("../xl_recurrence", "/etc", "..", ".", "", "a/b", "a\\b", "a\0b"):
        for words in (["publish", name, "--to", "published"], ["report", name], ["compare", name, name]):
            assert main(words) == 2, words
            message = capsys.readouterr().err
            assert message.startswith("error: ") and len(message.splitlines()) == 1, words
            assert {path.name for path in tmp_path.iterdir()} == {"home"}, words


@pytest.mark.parametrize("key", ["../other", "/etc/passwd", "..", "a/b"])
def test_a_key_in_a_plan_that_leads_out_of_the_runs_is_refused(tmp_path: Path, key: str) -> None:
    plan = write_product(tmp_path, {})
    path = tmp_path / "studies" / "xl_recurrence" / "plan.json"
    path.write_text(path.read_text().replace(plan["arms"][0]["runs"][0]["key"], key))
    with pytest.raises(ReportError, match="no name of a run"):
        load_study(tmp_path, "xl_recurrence")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_commands_publish_index_and_render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_product(tmp_path, {"off": 0.2}, contrasts=CONTRAST)
    (tmp_path / key_of(OFF, 2) / "record.json").unlink()
    folder = tmp_path / "published"
    assert main(["publish", "xl_recurrence", "--runs", str(tmp_path), "--to", str(folder)]) == 0
    assert "1 of its runs missing" in capsys.readouterr().err
    before = (folder / "xl_recurrence" / "report.md").read_bytes()
    (folder / "xl_recurrence" / "report.md").unlink()
    assert main(["report", "xl_recurrence", "--runs", str(tmp_path / "none"), "--in", str(folder)]) == 0
    assert (folder / "xl_recurrence" / "report.md").read_bytes() == before
    assert {path.name for path in folder.glob("*/*")} == {"results.jsonl", "report.md", *PNGS}
    assert main(["gallery", "--in", str(folder)]) == 0
    assert main(["site", "--in", str(folder), "--to", str(tmp_path / "site")]) == 0
    assert {"page.html", "report.csv", "report.tex"} <= {path.name for path in (tmp_path / "site").glob("*/*")}
    assert main(["gallery", "--in", str(tmp_path / "none")]) == 2
    assert "begin with: python -m reports publish" in capsys.readouterr().err
    assert main(["report", "unknown", "--runs", str(tmp_path), "--in", str(folder)]) == 2
    assert "make it by: python -m ablations report unknown" in capsys.readouterr().err


@pytest.mark.slow
def test_nothing_published_tells_of_this_machine(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.2}, contrasts=CONTRAST)
    (tmp_path / key_of(ON, 1) / "record.json").write_text("{")
    publish(tmp_path, "xl_recurrence", tmp_path / "published")
    write_gallery(tmp_path / "published")
    write_site(tmp_path / "published")
    private = [str(tmp_path), str(Path.home()), os.uname().nodename]
    for path in (tmp_path / "published").rglob("*"):
        if path.suffix in (".md", ".csv", ".tex", ".html", ".jsonl", ".svg"):
            text = path.read_text()
            assert not [word for word in private if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)], path.name


def test_what_was_withdrawn_gives_its_reason_in_place_of_its_answer_until_it_is_published_again(
    tmp_path: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, folder = tmp_path / "runs", tmp_path / "published"
    write_product(runs, {"off": 0.2}, contrasts=CONTRAST, published=published_source(29.0, 26.8))
    page = publish(runs, "xl_recurrence", folder)
    _, *numbers = (page.with_name(RESULTS)).read_text().splitlines()
    reason = "its costs leave out\n a part"
    assert main(["withdraw", "xl_recurrence", reason, "--in", str(folder)]) == 0
    write_gallery(folder, again=True)
    report, index = page.read_text(), (folder / "README.md").read_text()
    first_line = "**Withdrawn: its costs leave out a part.**"
    assert report.splitlines()[2] == first_line and "Better" not in report.split("| Arm")[0]
    assert page.with_name(RESULTS).read_text().splitlines()[1:] == numbers
    assert "0 studies, 0 comparisons" in index and "Withdrawn, and not counted: xl\\_recurrence." in index
    assert "every comparison | Withdrawn: its costs" in index and "Nothing is decided yet." in index
    assert "No decided comparison disagrees" in index and "Withdrawn: its costs" in section(index, "Studies")
    assert "Withdrawn: its costs" in to_gallery_html(read_entries(folder))
    assert relative_effects(read_entries(folder)) == ([], [])
    shutil.rmtree(runs / key_of(OFF, 2))  # wrong results may be replaced by fewer right ones
    assert "Withdrawn" not in publish(runs, "xl_recurrence", folder).read_text()
    assert main(["withdraw", "xl_recurrence", " ", "--in", str(folder)]) == 2
    assert "give the reason of the withdrawal in one line" in capsys.readouterr().err
