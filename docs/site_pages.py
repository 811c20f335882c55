"""Pages of the site that stand outside of docs: those at the top of the repository, and what the gallery shows."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DRAWING = "draw-a-digit.html"
TOP = {"CHANGELOG": "changelog", "CONTRIBUTING": "contributing", "SECURITY": "security", "CODE_OF_CONDUCT": "conduct"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    root = Path(config["config_file_path"]).parent
    for name, page in TOP.items():
        files.append(File.generated(config, f"{page}.md", content=(root / f"{name}.md").read_text()))
    for script in sorted((root / "examples").rglob("*.py")):
        name = script.relative_to(root).as_posix()
        page = f"# {name}\n\n```python\n{script.read_text()}```\n"
        files.append(File.generated(config, name.replace(".py", ".md"), content=page))
    for notebook in sorted((root / "examples").rglob("*.ipynb")):
        name = notebook.relative_to(root).as_posix()
        files.append(File.generated(config, name.replace(".ipynb", ".md"), content=show_notebook(notebook)))
    if drawing(config).is_file():
        files.append(File.generated(config, DRAWING, abs_src_path=str(drawing(config))))
    return files


def show_notebook(path: Path) -> str:
    """Give the cells of a notebook as a page."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells) + "\n"


def drawing(config: Any) -> Path:
    """Name the page in which one draws a digit, which `make docs` builds where there is npm."""
    return Path(config["config_file_path"]).parent / "browser-build" / "digits.html"


def on_page_markdown(markdown: str, page: Any, config: Any, **rest: Any) -> str:
    """Let links lead to pages of the site: from docs to the top and to examples, and from the top into docs.

    A link that reads as the name of a file, as it should in a repository, reads as the page's title.
    """
    for name, other in TOP.items():
        markdown = re.sub(rf"\]\((?:\.\./)?((?:\.\./)?){name}\.md", rf"](\1{other}.md", markdown)
    markdown = re.sub(r"\]\((?:\.\./)?(examples/[\w/]+)\.(?:py|ipynb)\)", r"](\1.md)", markdown)
    if drawing(config).is_file():
        markdown = markdown.replace("](gallery.md#an-ensemble-in-the-browser)", f"]({DRAWING})")
        markdown = markdown.replace("Draw a digit and see label,", f"[Draw a digit]({DRAWING}) and see label,")
    markdown = re.sub(r"\]\(docs/([\w./-]+)", r"](\1", markdown)
    # GitHub needs a backslash before a bar in the code of a table; here it would be shown.
    markdown = re.sub(r"`[^`\n]*\\\|[^`\n]*`", lambda code: code[0].replace("\\|", "|"), markdown)
    names = titles(config["nav"])
    return re.sub(
        r"\[[\w./-]+\.md\]\(([\w-]+\.md)((?:#[\w-]+)?\))",
        lambda link: f"[{names[link[1]]}]({link[1]}{link[2]}" if link[1] in names else link[0],
        markdown,
    )


def titles(nav: Any) -> dict[str, str]:
    """Give the title of each page that the navigation names."""
    if isinstance(nav, list):
        return {page: title for entry in nav for page, title in titles(entry).items()}
    if isinstance(nav, dict):
        return {
            page: name or title
            for title, inside in nav.items()
            for page, name in (titles(inside) if isinstance(inside, list) else {inside: ""}).items()
        }
    return {}
