"""Settings of Sphinx for ``python -m docs build``: Markdown in, a folder of pages that needs no server out."""

from __future__ import annotations

project = "lit-transformers"
root_doc = "index"
source_suffix = {".md": "markdown"}
extensions = ["myst_parser"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

smartquotes = False  # two hyphens begin an option

html_theme = "furo"
html_title = project
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it is fetched, which no browser does from a file
html_permalinks_icon = "#"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
