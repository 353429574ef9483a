"""Pages of reference as Markdown: fields of configs, commands, fields of a study, all studies, and all mechanisms.

They are generated from the same sources as ``python -m lit_transformers config``, ``--help`` and
``python -m ablations list``: classes, their docstrings, the options of commands, and the files of studies.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperArgument

import ablations
from ablations import catalog
from ablations.ablation import Source
from lit_transformers.cli.commented_config import scalar, type_text
from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.config import Config, field_types, plain_of
from lit_transformers.json_schema import REQUIRED, default_of, docs_of, leaf_schema, summary_of
from lit_transformers.kinds import Place, parts, places
from lit_transformers.lightning_runs.config import LightningRunConfig
from lit_transformers.mixer import Mode
from lit_transformers.mixers import MIXERS
from lit_transformers.runs import RunConfig

__all__ = ["OVERVIEWS", "PROGRAMS", "config_pages", "mechanisms_page", "pages", "studies_page"]

ROOTS = (RunConfig, LightningRunConfig, CommandRunConfig)
PROGRAMS = ("ablations", "sweeps", "reports", "lit_transformers")
"""The packages that are commands."""
OVERVIEWS = ("study", "studies", "mechanisms")
"""The pages that are neither of a config nor of a command."""
MODES: tuple[Mode, ...] = ("causal", "bidirectional", "permuted", "cross")


def pages() -> dict[str, str]:
    """Returns all pages of reference by their name, without an ending."""
    overviews = dict(zip(OVERVIEWS, (study_page(), studies_page(), mechanisms_page()), strict=True))
    return {**config_pages(), **{program: command_page(program) for program in PROGRAMS}, **overviews}


def config_pages() -> dict[str, str]:
    """Returns a page for each config of a run and for each table of kinds, by the name of its class.

    A config without kinds is a section of the page on which it is first named.
    """
    known = [*places(RunConfig)]
    return {page.__name__: "\n\n".join(_config_page(page, members, known)) for page, members in _outline()}


def _outline() -> Iterator[tuple[type[Config], list[type[Config]]]]:
    """Yields every config that has a page, with those that are sections of it. One of several kinds is a section of the
    page of these, also where a field takes it alone."""
    of_tables = {kind for place in places(RunConfig) for kind in place.kinds.values()}
    queue: list[type[Config]] = [*ROOTS]
    seen: set[type[Config]] = set(queue)
    while queue:
        page = queue.pop(0)
        members = [*page.kinds.values()] if page.kinds else [page]
        for member in members:  # grows while it is read: a config without kinds is a member of its page
            for part in (part for hint in field_types(member).values() for part in parts(hint)):
                if part not in seen and part not in members and (part.kinds or part not in of_tables):
                    seen.add(part)
                    (queue if part.kinds else members).append(part)
        yield page, members


def _config_page(page: type[Config], members: list[type[Config]], known: Iterable[Place]) -> Iterator[str]:
    kinds = {*page.kinds.values()}
    paths = [place.path for place in known if kinds and kinds <= {*place.kinds.values()}]
    yield f"{_target(page)}# {', '.join(f'`{path}`' for path in paths) or f'`{page.__name__}`'}"
    if kinds:
        yield _prose(summary_of(page))
        yield "Kinds: " + ", ".join(f"[`{kind}`](#{_label(part)})" for kind, part in page.kinds.items()) + "."
    for member in members:
        if member is not page:
            title = f"`{member.kind}`" if member.kind else f"`{member.__name__}`"
            yield f"{_target(member)}## {title}"
        yield from _config_section(member, alone=member.kind and _is_alone(member, members))


def _label(config: type[Config]) -> str:
    """Returns the name of the section of a config, to which links lead from any page."""
    return f"config-{config.__name__}"


def _target(config: type[Config]) -> str:
    return f"({_label(config)})=\n"


def _is_alone(member: type[Config], members: list[type[Config]]) -> bool:
    """Whether no other of the kinds is defined in the same module, so that the docstring of the module is its own."""
    return sum(other.__module__ == member.__module__ for other in members) == 1


def _config_section(config: type[Config], alone: object) -> Iterator[str]:
    if alone:
        yield _prose((inspect.getdoc(sys.modules[config.__module__]) or "").partition("\n\n")[0])
    if summary := summary_of(config):
        yield _prose(summary)
    docs, hints = docs_of(config), field_types(config)
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        yield f"`{field.name}`\n: {_field(field, hints[field.name], docs.get(field.name, ''))}"
    if not dataclasses.fields(config):  # type: ignore[arg-type]
        yield "It has no fields."


def _field(field: dataclasses.Field[Any], hint: Any, doc: str) -> str:
    """Returns on one line the documentation of a field, the type of its values, and its default."""
    configs, default = parts(hint), default_of(field)
    if configs:
        taken = f"{'One of ' * bool(configs[0].kinds)}[`{configs[0].__name__}`](#{_label(configs[0])})"
    else:
        taken = _prose(type_text(leaf_schema(hint)))
    if default is REQUIRED:
        value = "required"
    elif isinstance(default, Config):
        value = f"default `{default.kind}`" if default.kind else "its defaults"
    else:
        value = f"default `{scalar(plain_of(default))}`"
    sentence = f"{_prose(doc).rstrip('.')}. " if doc else ""
    return f"{sentence}*{taken[0].upper()}{taken[1:]}; {value}.*" if not configs else f"{sentence}{taken}; {value}."


def command_page(program: str) -> str:
    """Returns the page of a command: its help, its examples, and the arguments and options of all that it does."""
    group = importlib.import_module(f"{program}.__main__").PROGRAM
    blocks = [f"# `python -m {program}`", *_help(group.help), *_help(group.epilog)]
    with group.context_class(group, info_name=f"python -m {program}") as parent:
        for name in group.commands:
            command = group.command(name)
            with command.context_class(command, info_name=name, parent=parent) as context:
                arguments = [_head(one, context) for one in command.params if isinstance(one, TyperArgument)]
                usage = " ".join([context.command_path, "[OPTIONS]", *arguments])
                blocks += [f"## `{name}`", f"```text\n{usage}\n```", *_help(command.help)]
                for parameter in command.params:
                    if record := parameter.get_help_record(context):
                        blocks.append(f"`{_head(parameter, context)}`\n: {_prose(record[1])}")
    return "\n\n".join(blocks)


def _head(parameter: Any, context: Any) -> str:
    """Returns how an argument or an option is written: STUDY, or --set PATH=VALUE."""
    if isinstance(parameter, TyperArgument):
        return str(parameter.metavar or parameter.name).upper()
    return str(parameter.get_help_record(context)[0])


def _help(text: str | None) -> Iterator[str]:
    """Yields the paragraphs of a help text, those that are command lines together as one block."""
    lines: list[str] = []
    for paragraph in filter(None, (text or "").split("\n\n")):
        line = paragraph.strip().removeprefix("Example: ")
        if re.match(r"(python|export|lit-)\S* ", line):
            lines.append(line)
            continue
        yield from _code(lines)
        lines = []
        yield _prose(line)
    yield from _code(lines)


def _code(lines: list[str]) -> Iterator[str]:
    if lines:
        yield "\n".join(["```sh", *(re.sub(r" {2,}(?=\S)", "  # ", line) for line in lines), "```"])


def study_page() -> str:
    """Returns the page of a study's fields, which is the file that ``ablations new`` writes."""
    skeleton = (Path(ablations.__file__).parent / "skeleton.txt").read_text(encoding="utf-8")
    introduction = "This is the file that `python -m ablations new NAME` writes, with every field explained."
    return f"# The fields of a study\n\n{introduction}\n\n```python\n{skeleton}```"


def studies_page() -> str:
    """Returns the table of the studies of this suite: question, source and scales of each."""
    rows = []
    for name in catalog.names():
        study = catalog.load(catalog.find(name))
        scales = ", ".join(f"`{scale}`" for scale in study.scales)
        rows.append((f"`{name}`", _prose(study.question), _source(study.source), scales))
    introduction = (
        "The studies that come with the suite, as `python -m ablations list` prints them. "
        "`python -m ablations show STUDY` prints the arms of one."
    )
    return "\n\n".join(["# Studies", introduction, _table(("Study", "Question", "Source", "Scales"), rows)])


def _source(source: Source | None) -> str:
    """Returns title and table of a paper, with a link to it; nothing for a study without a paper."""
    if source is None:
        return ""
    table = ""
    if source.table is not None:
        noun = ("tables " if " " in source.table else "table ") if source.table[0].isdigit() else ""
        table = f", {noun}{source.table}"
    return f"[{source.title}](https://arxiv.org/abs/{source.arxiv}){table}" if source.arxiv else source.title + table


def mechanisms_page() -> str:
    """Returns the promises of every mixer with its default fields, its refusals, and the kinds of all other parts."""
    promises = {kind: config().promises() for kind, config in MIXERS.items()}
    rows = [
        (f"[`{kind}`](#{_label(MIXERS[kind])})", *("yes" * (mode in of.modes) for mode in MODES), "yes" * of.streams)
        for kind, of in promises.items()
    ]
    refused = [
        f"- `{kind}` cannot be {mode}: {_prose(reason)}"
        for kind, of in promises.items()
        for mode, reason in of.refusals.items()
    ]
    others: dict[tuple[str, ...], Place] = {}
    for place in places(RunConfig):
        if place.path.startswith(("model", "task")) and not {*place.kinds} & {*MIXERS}:
            others.setdefault((*place.kinds,), place)
    return "\n\n".join(
        [
            "# Mechanisms",
            "A model is a tree of parts, and each part is a field: `model.mixer={kind: window, window: 64}`.",
            "## Mixers",
            "The promises of each mixer with its default fields. A mixer that streams reads a sequence in segments and "
            "gives the outputs of one pass.",
            _table(("`model.mixer`", *MODES, "streams"), rows),
            "## Refusals",
            "A mixer refuses the other modes with a reason:",
            "\n".join(refused),
            "## Other parts",
            _table(
                ("Field", "Kinds"),
                [
                    (f"`{place.path}`", ", ".join(f"[`{kind}`](#{_label(of)})" for kind, of in place.kinds.items()))
                    for place in others.values()
                ],
            ),
        ]
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [*head], ["---" for _ in head], *rows
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _prose(text: str) -> str:
    """Returns plain text as Markdown on one line: text in backticks is code, nothing else is markup."""
    words = re.split(r"(`+[^`]+`+)", " ".join(text.split()))
    return "".join(re.sub(r"([\\*_\[\]<>#|$~])", r"\\\1", word) if n % 2 == 0 else word for n, word in enumerate(words))
