"""The site says what is: its snippets run and print what it shows, its commands exist, its names
and links lead somewhere.
"""

import ast
import importlib
import inspect
import json
import re
import sys
import tomllib
from pathlib import Path

import click
import numpy as np
import polars as pl
import pytest
import typer
from packaging.version import Version
from typer.testing import CliRunner

import fmrl
from fmrl.cli.main import app
from fmrl.datasets.fetch import locate

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import notebooks  # noqa: E402
import snippets  # noqa: E402
import write_practice  # noqa: E402

PAGES = {
    str(p.relative_to(ROOT)): p.read_text(encoding="utf-8")
    for p in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
# Code that needs a cluster or Flower: names and arguments are checked where that is installed,
# nothing is run here (the Flower app is, by tests/federated).
ELSEWHERE = {"docs/scale.md": "ray", "docs/federated.md": "flwr"}
WITH_CODE = [
    name for name, text in PAGES.items() if snippets.blocks(text) and name not in ELSEWHERE
]
# Long runs are made short, and a GPU is not asked for: each of these must be there to be
# replaced.
SMALLER = {
    "docs/deep.md": {
        "cuda": "cpu",
        ".cpu()": "",
        "20_000": "2",
        "test, 50,": "test, 2,",
        "count=1000": "count=4",
    },
    "docs/data/README.md": {"count=100_000": "count=1_000"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a page runs, with the tables it speaks of: 30 shops, twelve visits each."""
    rng = np.random.default_rng(0)
    shop, day = np.repeat(np.arange(30), 12), np.tile(np.arange(12), 30)
    price = rng.normal(size=360)
    sold = np.where(day < 2, day % 2, price + 0.3 * rng.normal(size=360) < 0).astype(int)
    visits = pl.DataFrame(
        {"shop": [f"shop{i}" for i in shop], "price": price, "weekday": day % 7, "sold": sold}
    )
    visits.write_csv(tmp_path / "visits.csv")
    visits.filter(pl.col("shop").is_in(["shop3", "shop4"])).write_csv(tmp_path / "new-shops.csv")
    sales = visits.with_columns(day=pl.Series(day))
    sales.write_parquet(tmp_path / "sales.parquet")
    sales.filter(pl.col("shop") == "shop7").write_parquet(tmp_path / "new.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", WITH_CODE)
def test_snippets_run_and_print_what_the_page_shows(name, folder):
    text, omniglot = PAGES[name], locate("omniglot")
    if name in ("docs/deep.md", "docs/tutorials/images.md"):
        pytest.importorskip("torch")
    elif name == "docs/tutorials/cluster.md":
        pytest.importorskip("ray")
    elif name == "docs/privacy.md":
        pytest.importorskip("dp_accounting")
    elif "load_omniglot" in text and not omniglot:
        pytest.skip("Omniglot is not here")

    def change(code: str) -> str:
        if name == "docs/deep.md" and "load_omniglot" not in code:
            return code  # as it stands
        for long, short in SMALLER.get(name, {}).items():
            assert long in code or name != "docs/deep.md", f"{name} no longer says {long}"
            code = code.replace(long, short)
        return code if omniglot or "load_omniglot" not in code else ""

    printed = snippets.play(text, name, change, {"fmrl": fmrl})
    for block, now in zip(snippets.blocks(text), printed, strict=True):
        if block.output is not None:
            assert snippets.same(block.output, now), f"{name}, line {block.line} prints\n{now}"


# Pages that one command makes, which they name first.
STUDIES = [name for name, text in PAGES.items() if "scripts/write_reproduction.py" in text[:999]]
TUTORIALS = [name for name in PAGES if name.startswith("docs/tutorials/")]


@pytest.mark.parametrize("name", TUTORIALS)
def test_notebooks_are_in_step_with_their_pages(name):
    made = (ROOT / name).with_suffix(".ipynb")
    page = PAGES[name]
    assert made.read_text(encoding="utf-8") == notebooks.notebook(page), (
        "run python scripts/notebooks.py"
    )
    found = json.loads(made.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]
    shell = [line[1:] for cell in code if cell.startswith("!") for line in cell.splitlines()]
    python = [cell for cell in code if not cell.startswith("!")]
    assert python == [block.code.strip("\n") for block in snippets.blocks(page)]
    assert len(shell) == len(snippets.scripts(page))


@pytest.mark.parametrize("name", TUTORIALS)
def test_pictures_of_a_tutorial_are_made_by_it_and_say_how(name):
    pictures = re.findall(r"!\[[^]]+\]\(\.\./img/([\w.-]+)\)", PAGES[name])
    code = "".join(block.code for block in snippets.blocks(PAGES[name]))
    assert pictures and all(f'savefig("{picture}"' in code for picture in pictures)
    assert f"python scripts/snippets.py --write {name}" in PAGES[name]


PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
MAKES = re.compile(
    r"`(?:(python (?:scripts|benchmarks)/\S+\.py)|fmrl (?:demo|reproduce \w+)|make \w+)[^`]*`"
)


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if PICTURE.search(text)])
def test_every_picture_names_the_command_that_makes_it(name):
    """In its row of a table, in its section, or for the whole page before the first section."""
    text = PAGES[name]
    heads = [0, *(found.start() for found in re.finditer("^#", text, re.M)), len(text)]
    whole = text[: heads[2]] if name in STUDIES else ""
    for found in PICTURE.finditer(text):
        at = found.start()
        line = text[text.rfind("\n", 0, at) + 1 : text.index("\n", at)]
        section = text[max(h for h in heads if h <= at) : min(h for h in heads if h > at)]
        said = MAKES.findall(line if line.startswith("|") else section + whole)
        assert said, f"{name} shows {found[1]} and does not say what makes it"
        assert all((ROOT / script.split()[1]).is_file() for script in said if script)


def test_every_picture_is_shown_and_every_one_shown_is_there():
    shown = {
        (ROOT / name).parent.joinpath(found[1]).resolve()
        for name, text in PAGES.items()
        for found in PICTURE.finditer(text)
    }
    assert shown == {path.resolve() for path in ROOT.glob("docs/img/*")}
    gallery = {Path(found[1]).name for found in PICTURE.finditer(PAGES["docs/gallery.md"])}
    studies = re.compile("(convex|deep)-")  # those left out are on the page of their study
    assert all(studies.match(path.name) or path.name in gallery for path in shown)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_calls_on_pages_that_cannot_run_here_would_be_accepted(name):
    pytest.importorskip(ELSEWHERE[name])
    space: dict = {}
    tree = ast.parse("\n".join(block.code for block in snippets.blocks(PAGES[name])))
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            exec(ast.unparse(node), space)
    checked = 0
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func).split(".")[0] in space:
            called = inspect.signature(eval(ast.unparse(call.func), space))
            called.bind(*call.args, **{word.arg: None for word in call.keywords})
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if snippets.scripts(text)])
def test_scripts_run(name, folder):
    for words in snippets.scripts(PAGES[name]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"fmrl {' '.join(words)}: {result.output} {result.exception}"


def _command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command these words name, and the words that are left."""
    command = typer.main.get_command(app)
    while (
        isinstance(getattr(command, "commands", None), dict)
        and words
        and words[0] in command.commands
    ):
        command, words = command.commands[words[0]], words[1:]
    return command, words


COMMANDS = sorted(
    {(name, line) for name, text in PAGES.items() for line in snippets.commands(text)}
)


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_commands_and_their_options_exist(name, line):
    command, rest = _command(line.split()[1:])
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    assert not hasattr(command, "commands") or not rest or rest[0].startswith("-"), (
        f"{name}: there is no {line!r}"
    )
    unknown = [word for word in rest if word.startswith("--") and word.split("=")[0] not in options]
    assert not unknown, f"{name}: {line!r} has no option {unknown}"


def test_the_commands_without_json_are_those_the_page_names():
    def without(command: click.Command, words: tuple[str, ...]) -> set[str]:
        if isinstance(getattr(command, "commands", None), dict):
            return set().union(
                *(without(inner, (*words, name)) for name, inner in command.commands.items())
            )
        return set() if any("--json" in p.opts for p in command.params) else {" ".join(words)}

    assert without(typer.main.get_command(app), ()) == {
        "bench",
        *(f"data {word}" for word in ("list", "get", "verify", "build")),
    }
    assert (
        "`fmrl bench` and `fmrl data list`, `get`, `verify` and `build` print text alone"
        in " ".join(PAGES["docs/cli.md"].split())
    )


def test_the_oldest_versions_allowed_are_those_that_make_lowest_installs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    allowed = dict(line.split(">=") for line in project["dependencies"])
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert all(Version(tested[name]) == Version(least) for name, least in allowed.items())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-c constraints-lowest.txt" in makefile and "`make lowest`" in PAGES["docs/security.md"]


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [
        p
        for p in PAGES
        if p.startswith("docs/") and not re.search(rf": {re.escape(p[5:])}$", nav, re.M)
    ] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", PAGES[name]):
        assert (ROOT / name).parent.joinpath(target).exists(), f"{name} links to {target}"


def _resolve(name: str):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("flwr"):  # tests/federated looks at these
                return None
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} is nowhere")


def test_api_pages_name_what_exists():
    names = [
        n
        for page, text in PAGES.items()
        if page.startswith("docs/api")
        for n in re.findall(r"^::: (\S+)", text, re.M)
    ]
    assert len(names) > 30
    for name in names:
        _resolve(name)


def test_the_table_and_the_readme_are_what_the_records_say():
    records = write_practice.read()
    assert PAGES["docs/practice.md"] == write_practice.page(records), (
        "run python scripts/write_practice.py"
    )
    lines = PAGES["docs/measured.md"].splitlines()
    row = next(line for line in lines if "benchmarks/practice.py" in line)
    for what, number in write_practice.numbers(records).items():
        assert number in row, f"{what}: the record says {number}"


def test_what_is_compared_is_what_was_measured():
    page, measured = PAGES["docs/compared.md"], PAGES["docs/practice.md"]
    rows = re.findall(r"^\| .* / \*\*\d+\*\* .*$", page, re.M)
    assert len(rows) == 8 and all(f"\n{row}\n" in measured for row in rows)
    for number in re.findall(r"[\d.]+", "0.12 0.54 0.04"):
        assert number in page and f" {number} |" in measured, number
    assert "R² 15 / 20 / 2, log-loss 3 / 15 / 0" in " ".join(measured.split())
    record = json.loads((DEEP / "learn2learn.json").read_text(encoding="utf-8"))
    for row in record["rows"]:
        order = "first" if row["first_order"] else "second"
        rates = [f"{row[f'{who}, task-steps/s']:,}" for who in ("learn2learn", "fmrl")]
        cells = [f"{order} order", str(row["tasks"]), *rates, str(row["ratio"])]
        assert f"| {' | '.join(cells)} |" in page and row["apart"] < 5e-9
    for number in ("54.20", "47.67", "51.88", "47.42", "54.17"):
        assert number in page and f"| {number} [" in PAGES["docs/shakespeare.md"], number


DEEP = ROOT / "results" / "deep"


def _rows(name: str) -> dict[tuple[str, int], dict]:
    rows = json.loads((DEEP / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return {(row["how"].partition(" (")[0], row["stack"]): row for row in rows}


def test_speeds_of_ones_own_network_are_those_of_the_records():
    page = PAGES["docs/networks.md"]
    for name in ("mlp", "resnet", "transformer", "lstm"):
        for (how, _), row in _rows(f"benchmark-h200-{name}").items():
            if how.startswith("fmrl"):
                assert f"| {row['task-steps/s']:,.0f} ({row['ratio']:.0f}×) |" in page, (name, row)


def test_speeds_of_networks_are_those_of_the_records():
    page, readme = PAGES["docs/deep.md"], PAGES["README.md"]
    main, older, pooled = map(
        _rows, ("benchmark-h200", "benchmark-h200-tf32", "benchmark-h200-pooled")
    )
    for rows, how in [
        (main, "eager, torch.optim"),
        (main, "torch.func.vmap"),
        (main, "fmrl.deep, bf16"),
        (older, "fmrl.deep, tf32"),
    ]:
        found = [row for (name, _), row in rows.items() if name == how]
        for cell in (
            [f"{row['task-steps/s']:,.0f}" for row in found],
            [f"{row['ratio']:.0f}" for row in found],
            [str(row["stack"]) for row in found],
        ):
            assert f"| {' / '.join(cell)} |" in page, f"{how}: the record says {' / '.join(cell)}"
    best, wide = main["fmrl.deep, bf16", 160], pooled["fmrl.deep, bf16", 160]
    assert (
        f"{round(best['task-steps/s'], -3):,.0f} task-steps/s" in readme
        and f"{best['ratio']:.0f} times eager" in readme
    )
    assert (
        f"{wide['task-steps/s']:,.0f} task-steps/s" in page
        and f"{wide['ratio']:.0f} times eager" in page
    )
    ours = "fmrl.deep, float32"
    for name in ("mlp", "omniglot", "lstm", "transformer"):
        rows = _rows(f"benchmark-cpu-2-threads-{name}")
        for stack in (5, 40):
            row = rows[ours, stack]
            cell = f"| {row['task-steps/s']:,.0f} ({row['ratio']}×) |"
            assert cell in PAGES["docs/networks.md"], (name, row)
    quiet = _rows("benchmark-cpu-2-threads-omniglot")[ours, 5]["ratio"]
    assert f"{quiet} times eager at 5 tasks" in readme


def test_the_cost_of_reduced_precision_is_that_of_the_record():
    record = json.loads((DEEP / "precision-tiny-imagenet-100.json").read_text(encoding="utf-8"))
    low, high = ({r["precision"]: r for r in record["rows"]}[p] for p in ("bf16", "tf32"))
    points = [
        100 * (h - l)
        for shots in ("1-shot", "5-shot")
        for h, l in zip(high[shots], low[shots], strict=True)
    ]
    error = np.std(points, ddof=1) / np.sqrt(len(points))
    said = f"{np.mean(points):.3f}".replace("-", "−"), f"{error:.2f}"
    assert said == ("−0.055", "0.28") and "tf32 less bf16 is −0.06 points" in PAGES["docs/deep.md"]
    assert f"standard error {said[1]}" in " ".join(PAGES["docs/deep.md"].split())


def test_every_record_of_networks_is_listed_and_every_one_named_exists():
    listed = set(
        re.findall(r"^\| `([\w-]+\.json)`", (DEEP / "README.md").read_text(encoding="utf-8"), re.M)
    )
    assert listed == {path.name for path in DEEP.glob("*.json")}
    for name, text in PAGES.items():
        for path in re.findall(r"`(results/[\w/-]+\.json)`", text):
            assert (ROOT / path).exists(), f"{name} names {path}"


@pytest.mark.parametrize("name", PAGES)
def test_code_on_pages_is_narrow_enough_to_be_read(name):
    blocks = re.findall(r"```(?:python|sh|bash)\n(.*?)```", PAGES[name], re.S)
    wide = [line for block in blocks for line in block.splitlines() if len(line) > 88]
    assert not wide


def _public():
    plain = fmrl, fmrl.deep, fmrl.data, fmrl.cluster, fmrl.report, fmrl.bounds
    for room in (*plain, fmrl.playground, fmrl.federated):
        for name in room.__all__:
            try:
                value = getattr(room, name)
            except fmrl.FMRLError:  # needs Flower
                continue
            if callable(value) and getattr(value, "__module__", "").startswith("fmrl"):
                yield f"{room.__name__}.{name}", value


def test_public_callables_explain_their_arguments():
    """Those with two arguments or more; results, which nobody makes by hand, have comments."""
    results = {fmrl.Game, fmrl.History, fmrl.SimilarityReport, fmrl.cluster.Ledger}
    results |= {fmrl.cluster.Played, fmrl.federated.Reply}
    silent = []
    for name, value in _public():
        try:
            arguments = list(inspect.signature(value).parameters)
        except ValueError:
            continue
        if value in results or (inspect.isclass(value) and issubclass(value, (Exception, tuple))):
            continue
        if len(arguments) > 1 and "Args:" not in (inspect.getdoc(value) or ""):
            silent.append(name)
    assert silent == []
