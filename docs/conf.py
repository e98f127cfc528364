"""Configuration of the documentation site, which `make docs` builds from plain Markdown pages."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

from site_parts import chart, commands, navigation, signatures, sources  # noqa: E402 - needs the path set above

import dra_kit  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "dra-kit"
author = copyright = "the authors of dra-kit"  # noqa: A001 - Sphinx's name
version = release = dra_kit.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
]
exclude_patterns = ["site_parts"]
# excerpts of files may not parse
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
# the same heading anchors as GitHub
myst_heading_slug_func = "site_parts.slugs.slug"

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "exclude-members": "model_config, model_post_init, hardware, context",
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Class arguments", "params_style")]
# docstrings inherited from pydantic and typing contain references that do not resolve
nitpicky = False

copybutton_prompt_text = "$ "  # not "# " for root: it would also match comments

smartquotes = False  # it turns the two hyphens of an option into a dash

html_theme = "furo"
html_title = f"dra-kit {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
# base of links to source files; without it such a link becomes a path
source_url = os.environ.get("DOCS_SOURCE_URL", "").rstrip("/")

linkcheck_timeout = 20
linkcheck_ignore = [r"https?://(host:port|localhost|127\.0\.0\.1|10\.)"]


def setup(app: Sphinx) -> None:
    """Add the sidebar and the generated parts of the reference."""

    def read(_app: Sphinx, page: str, text: list[str]) -> None:
        text[0] = sources.lead_to(source_url, DOCS / f"{page}.md", text[0])
        if page == "index":
            text[0] += navigation.tree(DOCS)
        if page == "reference/commands":
            text[0] += commands.reference()
        if page == "reference/chart":
            text[0] += chart.table(DOCS.parent / "charts" / "dra-driver")

    def sign(*event: Any) -> tuple[str, str] | None:
        text = signatures.of(event[3])
        return None if text is None else (text, "")

    app.connect("source-read", read)
    app.connect("autodoc-process-signature", sign)
