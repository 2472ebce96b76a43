"""Settings of the site that `make docs` builds from the repository's documents, which stay where they lie."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cluster  # noqa: E402

project = "Penstock"
author = "The Penstock authors"
version = release = cluster.__version__
extensions = ["myst_parser", "sphinx_copybutton", "site_pages"]
root_doc = "README"
include_patterns = ["*.md", "*/*.md", "*/*/README.md", "*/reference/*.md"]
exclude_patterns = [".*", "out", "tests/node", "**/node_modules"]

# Anchors as code hosts make them, down to the headings of methods in the client's reference.
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
nitpicky = True

html_theme = "furo"
html_title = f"Penstock {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
