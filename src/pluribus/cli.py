"""The command line: `pluribus compare | train | predict | report | plan | export | data | recipes`."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
except ModuleNotFoundError as error:  # only torch and numpy are installed
    raise SystemExit(
        f"The command line needs {error.name}, which is not installed. Install it with: pip install 'pluribus[all]'"
    ) from None

from . import deploying, options

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console(stderr=True, highlight=False, emoji=False)
ALL_METHODS = "single,deep,packed,masksembles,batch_ensemble,mc_dropout,mimo,treenet,multihead"
NO_THRESHOLD = "no validation data said when to abstain, so nothing is accepted"
INTERRUPTED = 130  # what shells give for Ctrl-C


def main() -> None:
    """Run the command line; what goes wrong is said in a line, with exit code 2 for bad input and 1 otherwise."""
    try:
        sys.exit(app(prog_name="pluribus", standalone_mode=False) or 0)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(INTERRUPTED)
    except (ValueError, TypeError, FileNotFoundError, ModuleNotFoundError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")):
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        raise


# ---------------------------------------------------------------- commands


def _version(wanted: bool) -> None:
    if wanted:
        print(importlib.metadata.version("pluribus"))
        raise typer.Exit()


@app.callback()
def pluribus(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Efficient ensembles of neural networks: which one to use for your data, and what it buys you."""


@app.command()
def compare(
    data: options.SeveralData = "digits",
    data_dir: options.Folder = None,
    target: options.Target = None,
    task: options.Task = None,
    outside: options.Outside = "",
    shifted: options.Shifted = "",
    variants: options.Variants = "",
    image_size: options.ImageSize = None,
    split: options.Split = 0,
    broken: options.Broken = "stop",
    model: options.Model = None,
    width: options.Width = 1.0,
    dropout: options.Dropout = None,
    methods: options.Methods = ALL_METHODS,
    size: options.Size = 4,
    seeds: Annotated[int, typer.Option(help="How many seeds: each trains everything anew.", min=1)] = 1,
    sweep: options.Sweep = None,
    choose: options.Choose = None,
    recipe: options.Recipe = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.Rate = None,
    weight_decay: options.Decay = None,
    corruptions: options.Corruptions = "some",
    shift_rows: Annotated[int, typer.Option(help="How many test pictures are shifted.", min=1)] = 500,
    out: Annotated[Path | None, typer.Option(help="The study's folder; the same folder goes on where it was.")] = None,
    jobs: Annotated[int | None, typer.Option(help="How many runs at once [the cores].", min=1)] = None,
    threads: Annotated[int, typer.Option(help="Threads of each run.", min=1)] = 1,
    ray: Annotated[str | None, typer.Option(help="Run on a Ray cluster: its address, auto, or local.")] = None,
    device: options.Device = "cpu",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train the methods under equal conditions and show what each is worth, and what it costs.

    Examples:

        pluribus compare

        pluribus compare --data cifar10 --data-dir ~/data --model resnet18 --size 4 --seeds 3 --outside svhn

        pluribus compare --data cifar10 --methods packed --sweep alpha=1,2,3,4 --sweep gamma=1,2

        pluribus compare --data table:houses.csv --target price --model mlp
    """
    from .study import Study

    names = options.specs(data)
    study = Study(
        data=names,
        model=model,
        methods=options.listed(methods),
        size=size,
        seeds=list(range(seeds)),
        sweep=options.settings(sweep or [], several=True),
        choose=choose,
        width=width,
        dropout=dropout,
        recipe=recipe or ("digits" if names == ["digits"] else "default"),
        training=options.training(epochs=epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay),
        source=options.source(
            folder=data_dir, target=target, task=task, outside=outside, shifted=shifted, variants=variants,
            image_size=image_size, split=split, broken=broken,
        ),
        corruptions=_corruptions(corruptions),
        shift_rows=shift_rows,
        threads=threads,
        device=device,
    )  # fmt: skip
    options.check_device(device)
    _compared(study, out, jobs or (1 if device != "cpu" else os.cpu_count() or 1), ray, quiet, as_json)


def _compared(study: Any, out: Path | None, jobs: int, ray: str | None, quiet: bool, as_json: bool) -> None:
    from . import terminal
    from .report import report
    from .runs import loaded
    from .study import chosen, conduct

    folder = out or Path("pluribus-runs") / study.name
    talk = terminal.screen(stderr=True)
    with _said_how_to_go_on(lambda: f"{len(list(folder.glob('results/*.npz')))} finished runs are kept in {folder}"):
        with terminal.watched(talk, len(study.runs()), quiet or as_json) as watch:
            command = shlex.join(["pluribus", *sys.argv[1:]])
            outcome = conduct(study, folder, jobs=jobs, ray=ray, command=command, report=watch)
    results = chosen(outcome.results, study.choose) if study.choose else outcome.results
    if not (quiet or as_json):
        _note(note for run in study.runs()[:1] for note in loaded(run).notes)
    page = folder / "report.html"
    if results:
        report(results if study.choose else folder, page)
    if as_json:
        print(terminal.as_json(outcome, results, folder=str(folder), page=str(page) if results else None))
    elif not quiet:
        show = terminal.screen()
        for table in terminal.tables(results):
            show.print()
            show.print(table)
        for text in ["", *terminal.sentences(results)[:6], "", f"The page: {page}" if results else ""]:
            show.print(escape(text), soft_wrap=True)
    for name, reason in outcome.failed.items():
        console.print(f"[bold red]failed:[/] {escape(name)}: {escape(reason)}", soft_wrap=True)
    if outcome.failed:
        raise typer.Exit(1)


def _note(notes: Iterable[str]) -> None:
    """Say what was decided about the data."""
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)


@contextmanager
def _said_how_to_go_on(kept: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"stopped; {escape(kept())}. The same command goes on from there.", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def _corruptions(text: str) -> list[str]:
    from .corruptions import BENCHMARK, CORRUPTIONS

    groups: Mapping[str, Any] = {"some": SOME, "all": list(CORRUPTIONS), "benchmark": list(BENCHMARK), "none": []}
    if text in groups:
        return list(groups[text])
    for name in options.listed(text):
        if name not in CORRUPTIONS:
            raise ValueError(
                f"--corruptions: {name!r} is unknown. Choose from {', '.join(groups)}, or {', '.join(CORRUPTIONS)}."
            )
    return options.listed(text)


SOME = ("gaussian_noise", "impulse_noise", "motion_blur", "zoom_blur", "contrast", "elastic_transform")


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="The folder to write the trained ensemble to.")],
    method: Annotated[str, typer.Option(help="One of the methods of `compare`.")] = "packed",
    data: options.Data = "digits",
    data_dir: options.Folder = None,
    target: options.Target = None,
    task: options.Task = None,
    image_size: options.ImageSize = None,
    split: options.Split = 0,
    broken: options.Broken = "stop",
    model: options.Model = None,
    width: options.Width = 1.0,
    dropout: options.Dropout = None,
    size: options.Size = 4,
    settings: Annotated[list[str] | None, typer.Option("--set", help="An argument of the method: alpha=3.")] = None,
    seed: int = 0,
    recipe: options.Recipe = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.Rate = None,
    weight_decay: options.Decay = None,
    risk: Annotated[float, typer.Option(help="The error to keep to by abstaining.", min=0, max=1)] = 0.05,
    threads: Annotated[int | None, typer.Option(min=1)] = None,
    device: options.Device = "cpu",
    precision: Annotated[str | None, typer.Option(help="32-true, bf16-mixed, 16-mixed.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs without improvement.", min=1)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what another training wrote there.")] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train one ensemble, for `pluribus predict`. A training that was stopped goes on with the same command.

    Examples:

        pluribus train --out digits/ --method packed --size 4

        pluribus train --out houses/ --data table:houses.csv --target price --method deep --epochs 40
    """
    import torch

    from .bundle import TRAINING, bundled, claim, store
    from .evaluation import evaluate
    from .runs import BASELINES, Run, arguments, loaded, summarised, trained

    if method not in BASELINES:
        raise ValueError(f"--method: {method!r} is unknown. Choose from {', '.join(BASELINES)}.")
    given = options.settings(settings or [], several=False)
    for name in given:
        if name not in arguments(method):
            raise ValueError(f"--set: {method} takes no {name!r}. Choose from {', '.join(sorted(arguments(method)))}.")
    threads = threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    run = Run(
        data=data, model=model or "auto", method=method, label=method, size=size, settings=given, width=width,
        dropout=dropout, seed=seed, recipe=recipe or ("digits" if data == "digits" else "default"),
        training=options.training(epochs=epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay),
        source=options.source(folder=data_dir, target=target, task=task, outside="", shifted="", variants="",
                       image_size=image_size, split=split, broken=broken),
        threads=threads, device=device,
    )  # fmt: skip
    options.check_device(device)
    found = loaded(run)
    if not (quiet or as_json):
        _note(found.notes)
    claim(run, out, overwrite)
    with _said_how_to_go_on(lambda: f"the epochs so far are kept in {out}"):
        ensemble, history, seconds = trained(
            run, found, folder=out / TRAINING, progress=not (quiet or as_json) and console.is_terminal,
            precision=precision, patience=patience,
        )  # fmt: skip
    figures = evaluate(summarised(ensemble, found, found.test))
    bundle = bundled(run, found, ensemble, figures, risk)
    store(bundle, out)
    shutil.rmtree(out / TRAINING)
    _shown(bundle, found, figures, seconds, out, quiet, as_json)


def _shown(bundle: Any, data: Any, figures: Any, seconds: float, out: Path, quiet: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"folder": str(out), "test": figures, "seconds": seconds,
                          "threshold": bundle.record["threshold"], "notes": data.notes}, indent=1))  # fmt: skip
    elif not quiet:
        names = ("accuracy", "nll", "ece", "rmse", "coverage")
        text = ", ".join(f"{name} {figures[name]:.4g}" for name in names if name in figures)
        print(f"test: {text}; {seconds:.0f} s of training")
        print(bundle.threshold.explain() if bundle.threshold else bundle.record.get("no_threshold", ""))
        print(f"written to {out}; next: pluribus predict {shlex.quote(str(out))} FILES")


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="What `pluribus train` wrote.")],
    files: options.Files,
    form: Annotated[str, typer.Option("--format", help="table, jsonl or csv.")] = "table",
    broken: options.Broken = "stop",
    device: options.Device = "cpu",
    abstained: Annotated[bool, typer.Option(help="Show only what a person should look at.")] = False,
) -> None:
    """Label, confidence, aleatoric and epistemic uncertainty of each picture or row, and whether to accept the answer.

    Examples:

        pluribus predict digits/ scans/*.png

        pluribus predict houses/ new.csv --format csv > answers.csv
    """
    from .bundle import opened

    if form not in ("table", "jsonl", "csv"):
        raise ValueError(f"--format: it must be table, jsonl or csv, but it is {form!r}.")
    options.check_device(device)
    bundle = opened(folder, device)
    for path in files:
        if not path.exists():
            raise FileNotFoundError(f"predict: there is no file {str(path)!r}.")
    if abstained and not bundle.record["classes"]:
        raise ValueError("--abstained: a regression has no threshold; look at the intervals instead.")
    if bundle.record["classes"] and bundle.threshold is None:
        console.print(f"[yellow]note:[/] {escape(bundle.record.get('no_threshold', NO_THRESHOLD))}", soft_wrap=True)
    rows = (row for source in _sources(files) for row in _answers(bundle, source, broken, len(files) > 1))
    wanted = (row for row in rows if not abstained or row["decision"] == "abstain")
    {"table": _as_table, "jsonl": _as_lines, "csv": _as_csv}[form](wanted)


def _answers(bundle: Any, source: Path | list[Path], broken: str, several: bool) -> Iterator[dict[str, Any]]:
    """The answers to one source; rows of one table among several files are named after it."""
    of_table = several and isinstance(source, Path) and bundle.record["encoding"]["kind"] == "table"
    for row in bundle.answers(source, broken=broken):
        yield {**row, "name": f"{source}: {row['name']}"} if of_table else row


def _sources(files: list[Path]) -> Iterator[Path | list[Path]]:
    """Pictures that stand together as one list; folders, arrays and tables one by one."""
    kind = lambda path: path.is_file() and path.suffix.lower() not in (".npz", ".npy", ".csv", ".tsv", ".parquet")  # noqa: E731
    for pictures, group in itertools.groupby(files, kind):
        together = list(group)
        yield from [together] if pictures else together


def _as_lines(rows: Iterator[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row))


def _as_csv(rows: Iterator[dict[str, Any]]) -> None:
    import csv

    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, row)
            writer.writeheader()
        writer.writerow(row)


def _as_table(rows: Iterator[dict[str, Any]]) -> None:
    from .terminal import screen

    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, row in enumerate(rows):
        if not i:
            for name, value in row.items():
                table.add_column(name, justify="left" if isinstance(value, str) else "right")
        table.add_row(*(escape(v) if isinstance(v, str) else f"{v:.4g}" for v in row.values()))
    screen().print(table)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a study.")],
    out: Annotated[Path | None, typer.Option(help="The page to write [FOLDER/report.html].")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the page of a study again, from its results."""
    from . import terminal
    from .report import report as write
    from .results import read_all
    from .study import Outcome, chosen

    if not (folder / "study.json").is_file():
        raise FileNotFoundError(f"report: {str(folder)!r} is no study: there is no study.json in it.")
    results, damaged = read_all(folder)
    metric = json.loads((folder / "study.json").read_text()).get("choose")
    results = chosen(results, metric) if metric else results
    page = out or folder / "report.html"
    for error in damaged:
        console.print(f"[yellow]warning:[/] {escape(str(error))}", soft_wrap=True)
    write(results if metric else folder, page)
    if as_json:
        print(terminal.as_json(Outcome(results, {}, damaged), results, page=str(page)))
        return
    for table in terminal.tables(results):
        terminal.screen().print(table)
    print(f"The page: {page}")


@app.command()
def data(
    data_dir: options.Folder = None,
    as_json: options.AsJson = False,
) -> None:
    """What data sets are known, where they are looked for, and which of them are there."""
    from .data import DATA, data_folder
    from .terminal import screen

    place = data_folder(data_dir)
    rows = [
        {
            "name": name,
            "here": "built in" if not source.files else str(source.found(place) or "no"),
            "role": source.role,
            "what": source.description,
            "files": list(source.files),
            "from": source.page,
        }
        for name, source in DATA.items()
    ]
    if as_json:
        print(json.dumps({"folder": str(place), "data": rows}, indent=1))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "here", "what", "from"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        here = row["here"].replace(str(place) + os.sep, "") if isinstance(row["here"], str) else ""
        table.add_row(*(escape(str(text or "")) for text in (row["name"], here, row["what"], row["from"])))
    show = screen()
    show.print(table)
    show.print(f"looked for in {escape(str(place))}; --data-dir or PLURIBUS_DATA names another folder", soft_wrap=True)


app.command()(deploying.plan)
app.command()(deploying.export)


@app.command()
def recipes() -> None:
    """The papers' training settings, by name."""
    from .recipes import RECIPES
    from .terminal import screen

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "epochs", "batch", "optimizer", "rate", "from"):
        table.add_column(name)
    for name, one in RECIPES.items():
        table.add_row(name, str(one.epochs), str(one.batch_size), one.optimizer["name"], f"{one.lr:g}", one.source)
    screen().print(table)


if __name__ == "__main__":
    main()
