"""The command line: `pluribus COMMAND`, put together from one file per command."""

from __future__ import annotations

import errno
import importlib.metadata
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

try:
    import rich  # noqa: F401
    import typer
except ModuleNotFoundError as error:  # only torch and numpy are installed
    raise SystemExit(
        f"The command line needs {error.name}, which is not installed. From a clone: pip install '.[all]'"
    ) from None

from typer.core import TyperGroup

from .align import align_command
from .common import options
from .common.messages import INTERRUPTED, messages, say
from .compare import compare_command
from .export import export_command
from .landscape import landscape_command
from .listings import cite_command, data_command, recipes_command
from .plan import plan_command
from .predict import predict_command
from .report import report_command
from .reproduce import reproduce_command
from .train import train_command
from .upgrade import upgrade_command


class Commands(TyperGroup):
    """The list of commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        options.hide_values_of_flags_(self.get_params(ctx))
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: dict[str, Callable[..., None]] = {
    "compare": compare_command,
    "train": train_command,
    "upgrade": upgrade_command,
    "predict": predict_command,
    "report": report_command,
    "data": data_command,
    "plan": plan_command,
    "export": export_command,
    "landscape": landscape_command,
    "reproduce": reproduce_command,
    "align": align_command,
    "recipes": recipes_command,
    "cite": cite_command,
}

for name, command in COMMANDS.items():
    app.command(name, cls=options.ListsMethods)(command)


def main() -> None:
    """Run the command line; an error is one line, with exit code 2 for bad input and 1 otherwise."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what Pillow thinks of a picture: we say that ourselves
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    try:
        with _said_warnings():
            sys.exit(app(prog_name="pluribus", standalone_mode=False) or 0)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        messages.print("stopped")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")):
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        if os.environ.get(TRACEBACK):
            raise
        sys.exit(_explain(error))


@contextmanager
def _said_warnings() -> Iterator[None]:
    """Warnings of ours are said in a line as errors are, without the place in the code; others as Python shows them."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if issubclass(category, UserWarning) and OWN in Path(filename).parents:
            say("[yellow]warning:[/]", str(message))
        else:
            usual(message, category, filename, *rest)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = usual


OWN = Path(__file__).parents[1]
TRACEBACK = "PLURIBUS_TRACEBACK"
GIVEN = (
    *(ValueError, TypeError, ModuleNotFoundError),
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
)


def _explain(error: Exception) -> int:
    """Say what went wrong, and give the exit code: 2 for what was given, 1 for the machine and for our own faults."""
    text, code = str(error), 1
    if isinstance(error, GIVEN) or isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        code = 2
    elif isinstance(error, MemoryError):
        text, code = f"there is not enough memory ({error}). Give smaller files, or fewer rows at once.", 2
    elif not isinstance(error, OSError | ImportError):
        text = f"{type(error).__name__}: {error}. This is a bug: please report it, with the output of the same command "
        text += f"run with the environment variable {TRACEBACK}=1."
    say("[bold red]error:[/]", text)
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(importlib.metadata.version("pluribus-ml"))
        raise typer.Exit()


@app.callback()
def pluribus(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Efficient ensembles of neural networks: which one to use for your data, what it gains and what it costs."""


if __name__ == "__main__":
    main()
