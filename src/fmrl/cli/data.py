"""``fmrl data``: list, get, verify and build data sets, and read tables as tasks."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Exit, Option, Typer, echo

from fmrl.cli.guard import Guarded, bar
from fmrl.core.losses import Hinge, Linear, Logistic, Loss, Squared
from fmrl.datasets import fetch
from fmrl.datasets.registry import DATASETS, dataset
from fmrl.errors import ChecksumError, FMRLError
from fmrl.files import write

app = Typer(
    cls=Guarded,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Data sets: list, get, verify, build; and any table as tasks.

A data set is looked for in the folder of local copies first (--data DIR, or the environment
variable FMRL_DATA), then in the cache, and then downloaded from its original home. Files are
checked before they are used.

Exit codes: 0 done; 1 a data set is wrong or missing (fmrl data verify); 2 something to correct.

Examples:

    fmrl data list

    fmrl data get omniglot

    fmrl data verify --data ~/datasets

    fmrl data build mini-wiki --wiki3029 wiki3029.tsv.xz --wordnet wordnet-3.0-dict.tar.xz

    fmrl data table sales.csv --task shop --target sold
""",
)
console = Console()
LOSSES: dict[str, Loss] = {
    "squared": Squared(), "logistic": Logistic(), "hinge": Hinge(), "linear": Linear(),
}  # fmt: skip
DataOption = Annotated[
    Path | None, Option("--data", help="Folder of local copies (default: $FMRL_DATA).")
]


def say(text: str) -> None:
    """Print a line with markup, not wrapped and not coloured by guess."""
    console.print(text, soft_wrap=True, highlight=False)


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
    for d in DATASETS.values():
        try:
            found = fetch.locate(d.name, data)
            here = found.place if found else "can be downloaded" if d.downloads else "no"
        except ChecksumError:
            here = "DAMAGED: see fmrl data verify"
        rows.add_row(d.name, here, d.title, _counts(d.counts), d.licence)
    folder = fetch.data_dir(data)
    console.print(rows)
    where = escape(str(folder)) if folder else "none given (--data DIR, or FMRL_DATA)"
    say(f"local copies: {where}\ncache: {escape(str(fetch.cache_dir()))}")


@app.command()
def get(
    name: Annotated[str, Argument(help="A name from fmrl data list.")], data: DataOption = None
) -> None:
    """Find a data set, or download it into the cache: resumed when interrupted, checked, then put
    in place in one step.

    Examples:

        fmrl data get omniglot

        fmrl data get mini-wiki --data ~/datasets
    """
    with bar("bytes") as show:
        found = fetch.get(name, data, progress=show)
    say(f"{name} ({found.place}): {escape(', '.join(map(str, found.paths)))}")


@app.command()
def verify(
    names: Annotated[
        list[str] | None, Argument(help="Data sets to verify (default: all that are here).")
    ] = None,
    data: DataOption = None,
) -> None:
    """Read data sets to their end and compare checksums and counts; exit code 1 when one is wrong,
    or when none is here.

    Examples:

        fmrl data verify

        fmrl data verify omniglot mini-wiki-rebuilt
    """
    wrong = fine = 0
    where = fetch.data_dir(data) or "no folder of local copies"
    chosen = [dataset(n).name for n in names or DATASETS]
    with bar("sets") as show:
        for done, name in enumerate(chosen):
            show("verifying", done, len(chosen))
            try:
                if found := fetch.locate(name, data):
                    say(f"[green]ok[/] {name}: {_counts(fetch.count(found))}")
                    fine += 1
                elif names:
                    say(f"[yellow]not here[/] {name}: fmrl data get {name}")
                    wrong += 1
            except FMRLError as e:
                say(f"[bold red]wrong[/] {escape(f'{name}: {e}')}")
                wrong += 1
    if not (fine or wrong):
        say(f"no data set is here (searched: {escape(f'{where}; {fetch.cache_dir()}')})")
        say("fmrl data list shows them all")
    if wrong or not fine:
        raise Exit(1)


@app.command()
def build(
    name: Annotated[str, Argument(help="What to build: mini-wiki.")],
    wiki3029: Annotated[
        Path | None, Option(help="wiki3029.tsv.xz or Wiki-3029.tar.gz (default: found or fetched).")
    ] = None,
    wordnet: Annotated[
        Path | None, Option(help="WordNet 3.0's dict folder or archive (default: found or fetched)")
    ] = None,
    out: Annotated[
        Path | None, Option(help="New folder to write (default: in the cache, for the loaders).")
    ] = None,
    seed: Annotated[int, Option(help="Seed of page order, splits and sample order.")] = 0,
    reuse_pages: Annotated[bool, Option(help="Let pages serve in several tasks.")] = False,
    tarball: Annotated[bool, Option(help="Also write mini-wiki-rebuilt.tar.gz.")] = False,
    data: DataOption = None,
) -> None:
    """Rebuild Mini-Wiki by the recipe of the paper's appendix and print its four meta-classes.

    The result is "Mini-Wiki (rebuilt)": same layout, same recipe, not the authors' file. About a
    minute; the same bytes every time.

    With --reuse-pages a page serves in several tasks, and train, dev and test share pages: do not
    measure generalisation on it.

    Example:

        fmrl data build mini-wiki --wiki3029 wiki3029.tsv.xz --wordnet wordnet-3.0-dict.tar.xz
    """
    from fmrl.datasets import miniwiki_build

    if name not in ("mini-wiki", "mini-wiki-rebuilt"):
        fix = "the one that can be built is mini-wiki"
        raise FMRLError(f"there is no recipe for {name!r}", fix=fix)
    given = {"wiki3029": wiki3029, "wordnet": wordnet}
    sources = [p or fetch.get(n, data).path for n, p in given.items()]
    if missing := [p for p in sources if not p.exists()]:
        raise FMRLError(f"{missing[0]} does not exist", fix="check the path")
    target = out or fetch.cache_dir() / "mini-wiki-rebuilt" / "mini-wiki-rebuilt"
    with bar("") as show:
        options = {"seed": seed, "reuse": reuse_pages, "tarball": tarball}
        built = miniwiki_build.build(*sources, target, progress=show, **options)
    what = f"{built.pages:,} pages have a title that is a WordNet noun."
    say(f"{what} Cuts compared (three synsets and the rest):")
    for synsets, sizes in built.cuts:
        say(f"  smallest {min(sizes)}: {' | '.join(synsets)} | rest = {sizes}")
    rows = Table("label", "meta-class", "pages", "examples")
    for label, (meta, pages) in enumerate(built.classes.items()):
        examples = ", ".join(t[label] for t in built.tasks[:6]).replace("_", " ")
        rows.add_row(str(label), meta, str(len(pages)), escape(examples))
    console.print(rows)
    splits = ", ".join(f"{v} {k}" for k, v in built.splits.items())
    say(f"{len(built.tasks)} tasks ({splits}) in {escape(str(built.path))}")
    _coverage(built.path, data)
    source = 'name="mini-wiki-rebuilt"' if out is None else repr(str(out))
    say(f"load it: fmrl.data.load_miniwiki({escape(source)})")


@app.command()
def table(
    file: Annotated[str, Argument(help="CSV, TSV, Parquet or Arrow file, or a quoted glob.")],
    task: Annotated[str, Option(help="Column that names the task of a row.")],
    target: Annotated[str | None, Option(help="Column of labels or numbers to predict.")] = None,
    features: Annotated[
        list[str] | None, Option(help="Column to use; several allowed (default: all others).")
    ] = None,
    order: Annotated[
        list[str] | None, Option(help="Column that sorts the rounds of a task; several allowed.")
    ] = None,
    kind: Annotated[str, Option(help="auto, classification or regression.")] = "auto",
    loss: Annotated[
        str | None, Option(help="squared, logistic, hinge or linear (default: from --kind).")
    ] = None,
    categorical: Annotated[str, Option(help="Text columns: onehot or error.")] = "onehot",
    missing: Annotated[
        str, Option(help="Missing values: error, indicator, mean or drop.")
    ] = "error",
    unknown: Annotated[str, Option(help="A level no training task had: zero or error.")] = "zero",
    scale: Annotated[str, Option(help="none, standard or range, of the training tasks.")] = "none",
    levels: Annotated[
        int, Option(help="Most levels a text column may have; of more the most frequent count.")
    ] = 256,
    train: Annotated[
        float | None, Option(help="Share of the tasks the encoding is learned from (default: all).")
    ] = None,
    encoder: Annotated[
        Path | None, Option(help="Use this stored encoding instead of learning one.")
    ] = None,
    save_encoder: Annotated[Path | None, Option(help="Write the encoding here as JSON.")] = None,
    apart: Annotated[
        str, Option(help="Rows of a task that lie apart: error, gather or split.")
    ] = "error",
    one_class: Annotated[str, Option(help="A task with one class: error, keep or drop.")] = "error",
    rows: Annotated[int, Option(help="Rows in memory at a time when gathering.")] = 1_000_000,
    scratch: Annotated[
        Path | None, Option(help="Folder for temporary files when gathering.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Read a table as tasks and say what they are: how many, how large, which loss, which columns.

    The file is streamed, not held in memory. fmrl.tasks_from_frame takes the same options in
    Python.

    Examples:

        fmrl data table sales.csv --task shop --target sold

        fmrl data table visits.parquet --task patient --target score --order day --scale standard

        fmrl data table 'log-*.parquet' --task user --target sold --save-encoder encoder.json
    """
    from fmrl.tables import Policy, tasks_from_frame
    from fmrl.tables.frames import KINDS

    given: dict[str, Any] = {"task": task, "target": target, "train": train, "encoder": encoder}
    given |= {"features": features or None, "order": order or None, "apart": apart}
    given |= {"one_class": one_class, "rows": rows, "scratch": scratch}
    for option, value, allowed in (("kind", kind, KINDS), ("loss", loss, (None, *LOSSES))):
        if value not in allowed:
            fix = f"use one of {', '.join(a for a in allowed if a)}"
            raise FMRLError(f"--{option} {value} is unknown", fix=fix)
    policy = Policy(categorical, missing, unknown, scale, levels)
    given["policy"] = None if encoder is not None and policy == Policy() else policy
    stream = tasks_from_frame(file, loss=LOSSES[loss] if loss else kind, **given)
    sizes = np.array([t.rounds for t in stream])
    if not sizes.size:
        raise FMRLError("no task is left", fix="use --one-class keep")
    if save_encoder is not None:
        write(save_encoder, stream.encoder.to_json())
    names = ("least", "quarter", "median", "three quarters", "most")
    quantiles = np.quantile(sizes, np.linspace(0, 1, 5)).tolist()
    summary = {
        "tasks": len(sizes),
        "rows": int(sizes.sum()),
        "rows a task": dict(zip(names, quantiles, strict=True)),
        "loss": repr(stream.loss),
        "trained on": "all tasks" if stream.trained is None else f"{len(stream.trained):,} tasks",
        "columns": stream.encoder.names,
    }
    if as_json:
        echo(json.dumps(summary, ensure_ascii=False))
        return
    summary |= {"tasks": f"{len(sizes):,}", "rows": f"{sizes.sum():,}"}
    summary["rows a task"] = ", ".join(f"{k} {v:g}" for k, v in summary["rows a task"].items())
    summary["columns"] = ", ".join(stream.encoder.names)
    for name, value in summary.items():
        say(f"[bold]{name}[/] {escape(value)}")


def _counts(counts: Any) -> str:
    return ", ".join(f"{v:,} {k}" for k, v in counts.items())


def _coverage(path: Path, data: Path | None) -> None:
    """Say how many tokens have a vector, when vectors are here."""
    from fmrl.datasets.glove import Glove

    try:
        glove = Glove.load(data=data)
    except FMRLError:
        return
    files = sorted((path / "miniwikinet" / "raw").glob("*.txt"))
    lines = (line for f in files for line in f.read_text(encoding="utf-8").splitlines())
    share = glove.coverage(line.partition("\t")[2].split() for line in lines)
    say(f"{share:.2%} of tokens are in GloVe's vocabulary")
