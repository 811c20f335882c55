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


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Let links lead to pages of the site: from docs to the top and to examples, and from the top into docs."""
    for name, other in TOP.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{name}\.md", f"]({other}.md", markdown)
    markdown = re.sub(r"\]\((?:\.\./)?(examples/[\w/]+)\.py\)", r"](\1.md)", markdown)
    return re.sub(r"\]\(docs/([\w./-]+)", r"](\1", markdown)
