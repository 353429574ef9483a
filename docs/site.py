"""Builds the site: the Markdown of the repository as it lies, the generated pages, and the gallery.

Pages are put together in a folder of the same layout as the repository, so that a link between two of them leads to
the same page here, on a code host, and in the site.
"""

from __future__ import annotations

import gc
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from docs import reference
from lit_transformers.records.files import write_text
from reports.report import PAGE, REPORT

__all__ = ["GALLERY", "SiteError", "build"]

GALLERY = Path("gallery")
"""The folder of the site with the pages that ``python -m reports site`` makes."""
CODE = re.compile(r"\]\(\.\./([\w/]+\.py)\)")
"""The addresses of files of code in a page below docs."""
CONTENTS = """
```{toctree}
:hidden:
:caption: Begin

docs/quick_start
docs/running
docs/python
docs/tutorials/first_study
docs/tutorials/my_mixer
docs/tutorials/my_head
docs/tutorials/my_adapter
docs/tutorials/my_lightning_module
docs/tutorials/my_command
docs/tutorials/my_data
docs/tutorials/fine_tuning
docs/tutorials/my_parameter_groups
docs/tutorials/stages
docs/tutorials/my_cluster
docs/ray
docs/wandb
docs/translation
docs/serving
docs/pretraining
docs/tutorials/reading_a_report
docs/tutorials/statistics
docs/judge
docs/judge_records
docs/trust
```

```{toctree}
:hidden:
:caption: Results

published/README
docs/measured
docs/speed
docs/reliability
```

```{toctree}
:hidden:
:caption: Reference

reference/studies
reference/mechanisms
reference/commands
reference/study
reference/configs
```

```{toctree}
:hidden:
:caption: How it is built

docs/architecture
docs/glossary
docs/other_tools
docs/decisions
docs/gpu
CONTRIBUTING
```
"""


class SiteError(ValueError):
    """A site that was not built. The message is one line."""


def build(to: Path, root: Path) -> Path:
    """Builds the site of a checkout into a folder and returns the path of its first page. Pages of the gallery that are
    in the folder are linked. Raises SiteError for a link that leads nowhere and for any other warning of Sphinx."""
    try:
        from sphinx.cmd.build import main
    except ModuleNotFoundError as error:
        raise SiteError(f'{error.name} is not installed: pip install "lit-transformers[docs]"') from None
    with TemporaryDirectory(prefix="docs-") as temporary:
        source = Path(temporary) / "source"
        assemble(source, to, root)
        options = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(Path(__file__).parent)]
        gc.disable()  # the trees of all pages remain until the end, and looking for garbage takes a third of the time
        try:
            status = main([*options, "-d", str(Path(temporary) / "read"), str(source), str(to)])
        finally:
            gc.enable()
        if status:
            raise SiteError("the site has faults, which are named above")
    return to / "index.html"


def assemble(source: Path, site: Path, root: Path) -> None:
    """Puts all pages of the site into a folder, in the layout of the repository."""
    for folder in ("docs", "published", "benchmarks/results"):
        ignored = shutil.ignore_patterns("*.py", "__pycache__", "site", "*.jsonl", "*.json", "*.css")
        shutil.copytree(root / folder, source / folder, ignore=ignored)
    shutil.copy(root / "CONTRIBUTING.md", source)
    for name in set(CODE.findall((root / "docs" / "architecture.md").read_text(encoding="utf-8"))):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, source / name)
    front = (root / "README.md").read_text(encoding="utf-8")
    write_text(source / "index.md", front + CONTENTS)
    (source / "reference").mkdir()
    pages = reference.pages()
    for name, text in pages.items():
        write_text(source / "reference" / f"{name}.md", text + "\n")
    configs = [name for name in pages if name not in (*reference.PROGRAMS, *reference.OVERVIEWS)]
    introduction = "Every field of a run's config: its meaning, values and default, by its path."
    write_text(source / "reference" / "configs.md", contents("The fields of a run", introduction, configs))
    introduction = "The `--help` of each command."
    write_text(source / "reference" / "commands.md", contents("Commands", introduction, reference.PROGRAMS))
    with (source / "published" / "README.md").open("a", encoding="utf-8") as gallery:
        gallery.write("\n```{toctree}\n:hidden:\n:glob:\n\n*/report\n```\n")
    for page in (source / "published").rglob("*.md"):
        link_to_gallery(page, source / "published", site)


def contents(title: str, introduction: str, names: Iterable[str]) -> str:
    """Returns a page that lists others."""
    return "\n".join([f"# {title}\n\n{introduction}\n\n```{{toctree}}\n:maxdepth: 1\n", *names, "```\n"])


def link_to_gallery(page: Path, published: Path, site: Path) -> None:
    """Adds to a published page a link to the one that the gallery has in its place, where that is in the site."""
    folder = page.parent.relative_to(published)
    target = GALLERY / folder / (PAGE if page.name == REPORT else "index.html")
    if (site / target).is_file():
        title, _, text = page.read_text(encoding="utf-8").partition("\n")
        up = "../" * len(page.parent.relative_to(published.parent).parts)
        link = f'<p><a href="{up}{quote(target.as_posix())}">With tables that sort and figures that zoom</a></p>'
        write_text(page, f"{title}\n\n{link}\n{text}")
