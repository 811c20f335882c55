"""Pages of the site that stand outside of docs: those at the top of the repository, and the scripts of the gallery."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

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
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **rest: Any) -> str:
    """Let links lead to pages of the site: from docs to the top and to examples, and from the top into docs.

    A link that reads as the name of a file, as it should in a repository, reads as the page's title.
    """
    for name, other in TOP.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{name}\.md", f"]({other}.md", markdown)
    markdown = re.sub(r"\]\((?:\.\./)?(examples/[\w/]+)\.py\)", r"](\1.md)", markdown)
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
