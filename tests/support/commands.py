"""Commands in this process, as the shell would start them."""

from typing import Any

from pluribus.cli.app import app


def run(*arguments: Any) -> None:
    """A command; what it raises is raised."""
    app([str(argument) for argument in arguments], standalone_mode=False)
