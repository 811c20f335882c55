"""Pages of the site that stand at the top of the repository: they are added as they are, and links follow them."""

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
    return files


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Let links lead to pages of the site: from docs to the top, and from the top into docs."""
    for name, other in TOP.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{name}\.md", f"]({other}.md", markdown)
    return re.sub(r"\]\(docs/([\w./-]+)", r"](\1", markdown)
