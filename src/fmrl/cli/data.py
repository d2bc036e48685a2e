"""``fmrl data``: list, get, verify and build data sets, and read tables."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fmrl.cli.console import console, errors, plainly
from fmrl.cli.data_table import table
from fmrl.datasets import fetch
from fmrl.datasets.registry import DATASETS, dataset
from fmrl.errors import FMRLError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Data sets: list, get, verify, build; and any table as tasks.

A data set is looked for in the folder of local copies first (--data DIR, or the environment variable FMRL_DATA), then in the
cache, and then downloaded from its original home. Files are checked before they are used.

Examples:

    fmrl data list

    fmrl data get omniglot

    fmrl data verify --data ~/datasets

    fmrl data build mini-wiki --wiki3029 wiki3029.tsv.xz --wordnet wordnet-3.0-dict.tar.xz --out mini-wiki-rebuilt

    fmrl data table sales.csv --task shop --target sold
""",
)
app.command("table")(table)
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder of local copies (default: $FMRL_DATA).")
]


@app.command("list")
def list_(data: DataOption = None) -> None:
    """Show every data set: what it holds, its licence, and whether it is here.

    Example:

        fmrl data list --data ~/datasets
    """
    rows = Table(box=None, pad_edge=False)
    # Names are typed by hand, so they are never cut; the rest wraps.
    rows.add_column("name", no_wrap=True, min_width=max(map(len, DATASETS)))
    for title in ("here", "what", "counts", "licence"):
        rows.add_column(title, overflow="fold")
    with plainly():
        for d in DATASETS.values():
            try:
                found = fetch.locate(d.name, data)
                here = found.place if found else "can be downloaded" if d.downloads else "no"
            except fetch.ChecksumError:
                here = "DAMAGED: see fmrl data verify"
            rows.add_row(
                d.name,
                here,
                d.title,
                ", ".join(f"{v:,} {k}" for k, v in d.counts.items()),
                d.licence,
            )
        folder = fetch.data_dir(data)
    console.print(rows)
    where = escape(str(folder)) if folder else "none given (--data DIR, or FMRL_DATA)"
    console.print(
        f"local copies: {where}\ncache: {escape(str(fetch.cache_dir()))}",
        soft_wrap=True,
        highlight=False,
    )


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name from fmrl data list.")],
    data: DataOption = None,
) -> None:
    """Find a data set, or download it into the cache: resumed when interrupted, checked, then put
    in place in one step.

    Examples:

        fmrl data get omniglot

        fmrl data get mini-wiki --data ~/datasets
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with plainly(), Progress(*columns, console=errors, disable=not sys.stderr.isatty()) as bar:
        rows: dict[str, int] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in rows:
                rows[file] = bar.add_task(file, total=total)
            bar.update(rows[file], completed=done)  # type: ignore[arg-type]

        found = fetch.get(name, data, progress=progress)
    console.print(
        f"{name} ({found.place}): {escape(', '.join(map(str, found.paths)))}",
        soft_wrap=True,
        highlight=False,
    )


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Data sets to verify (default: all that are here).")
    ] = None,
    data: DataOption = None,
) -> None:
    """Read data sets to their end and compare checksums and counts; exit code 1 when one is wrong,
    or when none is here.

    Examples:

        fmrl data verify

        fmrl data verify omniglot mini-wiki-rebuilt
    """
    from fmrl.datasets.verify import count

    wrong = fine = 0
    columns = (SpinnerColumn(), TextColumn("verifying {task.description}"))
    with (
        plainly(),
        Progress(*columns, console=errors, transient=True, disable=not sys.stderr.isatty()) as bar,
    ):
        row = bar.add_task("", total=None)
        for name in names or DATASETS:
            bar.update(row, description=name)
            try:
                found = fetch.locate(dataset(name).name, data)
                if found is None:
                    if names:
                        wrong += 1
                        console.print(
                            f"[yellow]not here[/] {name}: fmrl data get {name}", highlight=False
                        )
                    continue
                counts = count(found)
                fine += 1
                console.print(
                    f"[green]ok[/] {name}: " + ", ".join(f"{v:,} {k}" for k, v in counts.items()),
                    highlight=False,
                )
            except FMRLError as e:
                wrong += 1
                console.print(
                    f"[bold red]wrong[/] {escape(f'{name}: {e}')}", highlight=False, soft_wrap=True
                )
        if not (fine or wrong):
            where = fetch.data_dir(data) or "no folder of local copies"
            raise FMRLError(
                f"no data set is here (searched: {where}; {fetch.cache_dir()})",
                fix="fmrl data list shows them all",
            )
    if wrong:
        raise typer.Exit(1)


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="What to build: mini-wiki.")],
    wiki3029: Annotated[
        Path | None,
        typer.Option(help="wiki3029.tsv.xz or Wiki-3029.tar.gz (default: found or downloaded)."),
    ] = None,
    wordnet: Annotated[
        Path | None,
        typer.Option(help="WordNet 3.0's dict folder or archive (default: found or downloaded)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder to write (default: in the cache, where loaders find it)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of page order, splits and sample order.")] = 0,
    reuse_pages: Annotated[
        bool, typer.Option(help="Let pages serve in several tasks, also of other splits.")
    ] = False,
    tarball: Annotated[bool, typer.Option(help="Also write mini-wiki-rebuilt.tar.gz.")] = False,
    data: DataOption = None,
) -> None:
    """Rebuild Mini-Wiki by the recipe of the paper's appendix and print its four meta-classes.

    The result is "Mini-Wiki (rebuilt)": same layout, same recipe, not the authors' file. About a
    minute; the same bytes every time.

    With --reuse-pages a page serves in several tasks, and train, dev and test share pages: do not
    measure generalisation on it.

    Example:

        fmrl data build mini-wiki --wiki3029 wiki3029.tsv.xz --wordnet wordnet-3.0-dict.tar.xz --out
        mini-wiki-rebuilt
    """
    from fmrl.datasets.miniwiki_build import build as build_miniwiki

    with plainly():
        if name not in ("mini-wiki", "mini-wiki-rebuilt"):
            raise FMRLError(
                f"there is no recipe for {name!r}", fix="the one that can be built is mini-wiki"
            )
        sources = [
            p or fetch.get(n, data).path for p, n in ((wiki3029, "wiki3029"), (wordnet, "wordnet"))
        ]
        if missing := [p for p in sources if not p.exists()]:
            raise FMRLError(f"{missing[0]} does not exist", fix="check the path")
        target = out or fetch.cache_dir() / "mini-wiki-rebuilt" / "mini-wiki-rebuilt"
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(
            *columns, console=errors, transient=True, disable=not sys.stderr.isatty()
        ) as bar:
            row = bar.add_task("reading pages", total=None)

            def progress(what: str, done: int, total: int) -> None:
                bar.update(row, description=what, completed=done, total=total)

            built = build_miniwiki(
                *sources, target, seed=seed, reuse=reuse_pages, tarball=tarball, progress=progress
            )
    console.print(
        f"{built.pages:,} pages have a title that is a WordNet noun. Cuts compared (three synsets and the rest):"
    )
    for synsets, sizes in built.cuts:
        console.print(
            f"  smallest {min(sizes)}: {' | '.join(synsets)} | rest = {sizes}", highlight=False
        )
    rows = Table("label", "meta-class", "pages", "examples")
    for label, (meta, pages) in enumerate(built.classes.items()):
        examples = [t[label] for t in built.tasks[:6]]
        rows.add_row(
            str(label), meta, str(len(pages)), escape(", ".join(examples).replace("_", " "))
        )
    console.print(rows)
    console.print(
        f"{len(built.tasks)} tasks ({', '.join(f'{v} {k}' for k, v in built.splits.items())}) in {escape(str(built.path))}",
        soft_wrap=True,
    )
    _coverage(built.path, data)
    source = 'name="mini-wiki-rebuilt"' if out is None else repr(str(out))
    console.print(
        f"load it: fmrl.datasets.load_miniwiki({escape(source)})", soft_wrap=True, highlight=False
    )


def _coverage(path: Path, data: Path | None) -> None:
    """Say how many tokens have a vector, when vectors are here."""
    from fmrl.datasets.glove import Glove

    try:
        glove = Glove.load(data=data)
    except FMRLError:
        return
    files = sorted((path / "miniwikinet" / "raw").glob("*.txt"))
    lines = (
        line.partition("\t")[2].split()
        for f in files
        for line in f.read_text(encoding="utf-8").splitlines()
    )
    console.print(f"{glove.coverage(lines):.2%} of tokens are in GloVe's vocabulary")
