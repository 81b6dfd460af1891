"""The site: `make docs` builds it into build/site by Sphinx, without network; every warning is an error."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the docstrings are those of this tree

project = html_title = "rljax"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["assets"]
default_role = "py:obj"  # `Run` in a docstring leads to it, where it is on a page
suppress_warnings = ["misc.highlighting_failure"]  # a block of code with … in it

myst_heading_anchors = 4  # as GitHub names them
myst_enable_extensions = ["deflist"]

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"  # of a dataclass the attributes say more than its constructor
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sourcelink = html_show_sphinx = html_show_copyright = html_copy_source = False


def setup(app):
    """Has the page of keys end with the keys."""
    app.connect("source-read", _add_keys)


def _add_keys(_app, page, source):
    if page != "keys":
        return
    from rljax.config.load import key_help

    group = None
    for path, default, meaning in key_help():
        if path.partition(".")[0] != group and ("." in path or group is None):
            group = path.partition(".")[0] if "." in path else "run"
            source[0] += f"\n## {group}\n\n| key | default | meaning |\n|---|---|---|\n"
        cells = f"`{path}`", default and f"`{default}`", meaning.replace("<", "&lt;").replace("*", "\\*")
        row = " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells)
        source[0] += f"| {row} |\n"
