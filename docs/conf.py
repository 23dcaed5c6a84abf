"""How Sphinx builds the site: `python -m sphinx -qW docs site`. A warning is an error, so a broken link fails."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
from reference import PARTS

project = "molprof"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["huggingface_hub", "safetensors", "tokenizers", "torch", "transformers"]  # the site needs none
suppress_warnings = ["myst.header"]
html_theme = "furo"
html_title = "molprof"
smartquotes = False
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False
html_css_files = ["site.css"]
html_static_path = ["static"]


def add_parts(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what the code declares in place of `<!-- built: NAME -->`, which GitHub does not show."""
    source[0] = re.sub(r"<!-- built: (\w+) -->", lambda mark: PARTS[mark[1]](), source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_parts)
