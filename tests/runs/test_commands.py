"""The commands: what --help shows runs as shown; exit codes; Ctrl-C."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import typer
from faults import digests, invoke, write_table

from fmrl.cli import adapt, report
from fmrl.cli import train as train_module
from fmrl.cli.guard import guarded, in_options
from fmrl.cli.main import app
from fmrl.errors import FMRLError
from fmrl.runs import folder
from fmrl.runs.algorithm_run import WINDOW

PROGRAM = [sys.executable, "-c", "from fmrl_program import run; run()"]
TRAIN = "train visits.csv --task shop --target sold --out x"


def leaves(command, words=()):
    """Every command of the tree, by its words."""
    inner = getattr(command, "commands", None)
    if not isinstance(inner, dict):
        return [" ".join(words)]
    return [leaf for name, c in inner.items() for leaf in leaves(c, (*words, name))]


COMMANDS = leaves(typer.main.get_command(app))
# Mistakes with every command, and what is said of them.
MISTAKES = {
    "train": [
        ("train none.csv --task a --target b --out x", "none.csv does not exist"),
        (f"{TRAIN} --kind odd", "--kind odd is unknown"),
        (f"{TRAIN} --order [x]", "there is no column '[x]'"),
        (f"{TRAIN} --similarity Dubling(1)", "did you mean Doubling? use one of Doubling,"),
        (f"{TRAIN} --address auto", "give --engine ray with it"),
        (f"{TRAIN} --evaluate -1", "must be positive"),
    ],
    "adapt": [("adapt nothing visits.csv", "is not the folder of a run")],
    "predict": [("predict shop visits.csv --out x.csv", "is not the folder of a run")],
    "report": [("report visits.csv", "is not the folder of a run")],
    "certify": [
        ("certify nothing", "there is no file nothing"),
        ("certify run --growth -1", "give a positive number"),
        ("certify run --figure x.gif", "name it .png, .svg or .pdf"),
        ("certify run --json --markdown", "exclude each other"),
    ],
    "cite": [("cite .", "is not the folder of a run")],
    "playground": [
        ("playground nothing --no-open", "is not the folder of a run"),
        ("playground --checkpoint visits.csv --no-open", "visits.csv cannot be read"),
    ],
    "bench": [("bench nothing", "there is no benchmark 'nothing'; choose one of convex,")],
    "demo": [("demo --out visits.csv", "visits.csv: File exists")],
    "data list": [("data list --data nowhere", "the data folder nowhere does not exist")],
    "data get": [("data get nothing", "no data set is called 'nothing'")],
    "data verify": [],  # its exit code 1 says that a data set is not as it should be
    "data build": [("data build nothing", "there is no recipe for 'nothing'")],
    "data table": [("data table none.csv --task shop", "none.csv does not exist")],
} | {
    name: [(f"{name} --data nowhere --out x", "the data folder nowhere does not exist")]
    for name in COMMANDS
    if name.startswith("reproduce")
}
for _name in ("reproduce environments", "reproduce privacy"):  # they read no data folder
    MISTAKES[_name] = [(f"{_name} --out visits.csv", "visits.csv is a file, not a folder")]


def examples(command):
    return [
        shlex.split(line.split(">")[0])[1:]
        for line in re.findall(r"^ {8}(fmrl .*)$", command.__doc__, re.M)
    ]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The files of the examples: visits of shops, and of new shops."""
    home = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    n = 40 * 10
    shops, day = np.repeat([f"shop{i}" for i in range(40)], 10), np.tile(np.arange(10), 40)
    frame = pl.DataFrame({"shop": shops, "day": day, "price": rng.normal(size=n)})
    sold = np.where(frame["price"].to_numpy() + 0.5 * rng.normal(size=n) < 0, "yes", "no")
    frame = frame.with_columns(sold=pl.Series(sold), amount=pl.Series(10 * rng.random(n)))
    frame.write_csv(home / "visits.csv")
    frame[:200].write_parquet(home / "visits-1.parquet")
    frame[200:].write_parquet(home / "visits-2.parquet")
    new = frame[:60].with_columns(shop="new " + pl.col("shop"))
    new.write_csv(home / "new-shops.csv")
    new.drop("sold").write_csv(home / "new-visits.csv")
    return home


def test_examples_of_help_run_in_the_order_shown(shop, monkeypatch):
    monkeypatch.chdir(shop)
    commands = [train_module.train_command, adapt.adapt_command, adapt.predict_command]
    commands += [report.report_command, report.cite_command]
    listed = [words for command in commands for words in examples(command)]
    assert len(listed) == 12
    for words in listed:
        if "ray" in words:  # test_cluster.py has a cluster, and runs it
            continue
        first = words[0] == "train" and "--resume" not in words
        code, told = invoke(*words, *(["--evaluate", "3"] if first else []))
        assert code == 0, (words, told)
    models = json.loads((shop / "models.json").read_text())
    assert len(models["tasks"]) == 6 and models["features"] == ["day", "price", "amount"]
    said = pl.read_parquet(shop / "predictions.parquet")
    assert (said["model"] == "adapted").all() and len(said) == 60
    assert "<html" in (shop / "shops.html").read_text()[:200]
    code, told = invoke("certify", "run")
    assert code == 0 and "proved to be at most" in " ".join(told.replace("│", " ").split())
    entries = json.loads(invoke("cite", "known", "--json")[1])
    assert entries[0]["bibtex"].startswith("@inproceedings{khodak2019provable")
    facts = json.loads(invoke("report", "run", "--json")[1])
    sections = {"heldout", "learned", "curves", "similarity", "certificate", "run", "bibtex"}
    assert sections <= set(facts)
    assert facts["learned"]["coefficients"][0]["feature"] == "price"
    again = "fmrl train visits.csv --task shop --target sold --out"
    assert facts["run"]["command"].startswith(again)
    assert set(digests(shop / "run")) < set(os.listdir(shop / "run"))


def test_train_names_the_bound_it_prints(shop, monkeypatch):
    """The same number stands in the certificate, under the same name."""
    monkeypatch.chdir(shop)
    told = invoke(*TRAIN.replace("--out x", "--out named --evaluate 0").split())[1]
    bound = float(re.search(r"at most (\S+) by the per-task sum", told).group(1))
    certificate = json.loads(invoke("certify", "named", "--json")[1])
    summed = next(b for b in certificate["bounds"] if b["name"] == "per-task sum")
    assert bound == pytest.approx(summed["total"], rel=1e-3)


def test_train_warns_of_ids_and_says_when_held_out_tasks_are_few(shop, monkeypatch):
    monkeypatch.chdir(shop)
    frame = pl.read_csv("visits.csv").with_row_index("visit_id")
    frame.with_columns(pl.col("price").shuffle(0)).write_csv("ids.csv")  # nothing to learn
    told = invoke(*TRAIN.replace("visits", "ids").replace("--out x", "--out ids").split())[1]
    lines = [line for line in told.splitlines() if "warning: " in line]
    assert lines == [
        "warning: column 'visit_id' looks like an id: 350 different whole numbers in 350 rows; "
        "leave it out with --ignore if so"
    ]
    assert re.search(r"[1-9] held-out tasks are few for a verdict: --holdout 0.3", told)
    told = invoke(*TRAIN.replace("--out x", "--out much --holdout 0.9").split())[1]
    assert "warning: " not in told and "are few" not in told


def test_train_warns_where_every_row_is_a_task(shop, monkeypatch):
    monkeypatch.chdir(shop)
    pl.read_csv("visits.csv").with_row_index("visit").write_csv("rows.csv")
    words = TRAIN.replace("visits", "rows").replace("--task shop --target sold --out x", "")
    words += "--target price --kind regression --out alone --task "
    assert "is --task the id of a row?" in invoke(*words.split(), "visit")[1]
    told = invoke(*words.replace("alone", "shops").split(), "shop")[1]
    assert "is --task the id" not in told and "tasks" in told


def test_train_leaves_out_texts_that_name_rows_as_the_estimators_do(shop, monkeypatch):
    monkeypatch.chdir(shop)
    frame = pl.read_csv("visits.csv")
    code = pl.Series("code", [f"r{i}" for i in range(400)])
    place = pl.Series("place", [f"p{i % 300 // 30}" for i in range(399)] + ["rare"])
    frame.with_columns(code, place).write_csv("codes.csv")
    words = TRAIN.replace("visits", "codes").replace("--out x", "--holdout 0 --levels 10 --out")
    ended, told = invoke(*words.split(), "codes")
    assert ended == 0, told
    assert [line for line in told.splitlines() if "warning: " in line] == [
        "warning: column 'code' holds text that differs in nearly every row, as ids and free text "
        "do (400 texts in 400 rows): it is left out",
        "warning: column 'place' has 11 levels; the 10 most frequent count",
    ]
    used = json.loads((shop / "codes" / "encoder.json").read_text())["columns"]
    assert [c["name"] for c in used] == ["day", "price", "amount", "place"]
    assert used[-1]["levels"] == [f"p{i}" for i in range(10)]
    rows = frame.with_columns(place).drop("sold")  # nobody knows the code of a new row
    rows.write_csv("rows.csv")
    assert invoke("predict", "codes", "rows.csv", "--out", "said.csv")[0] == 0
    ended, told = invoke(*words.split(), "kept", "--ignore", "code", "--ignore", "place")
    assert ended == 0 and "warning: " not in told


def test_train_says_what_it_takes_whole_numbers_for(shop, monkeypatch):
    monkeypatch.chdir(shop)
    frame = pl.read_csv("visits.csv").with_row_index("row")
    frame.with_columns(sold=pl.col("row") % 9).drop("row").write_csv("counts.csv")
    words = TRAIN.replace("visits", "counts").replace("--out x", "--common linear --out")
    told = invoke(*words.split(), "counts", "--holdout", 0)[1]
    warned = "holds 9 whole numbers from 0 to 8, which are taken for classes and not for counts; "
    warned += "give --kind regression for a quantity, or --kind classification for classes"
    assert warned in told and "classification of 9 classes" in told
    for kind in ("regression", "classification"):
        told = invoke(*words.split(), kind, "--kind", kind, "--holdout", 0)[1]
        assert "warning: " not in told and f", {kind}" in told
    frame.with_columns(sold=pl.lit("2024-01-") + (pl.col("row") % 9 + 10).cast(str)).drop(
        "row"
    ).write_csv("counts.csv")
    code, told = invoke(*words.split(), "days")[:2]
    assert code == 2 and "dates as text" in told and "pass --kind classification" in told


def test_the_program_runs_as_a_module():
    found = subprocess.run([sys.executable, "-m", "fmrl", "--version"], capture_output=True)
    assert found.stdout.decode().startswith("fmrl ") and not found.returncode


def test_references_are_those_of_the_parts_used(shop, monkeypatch):
    monkeypatch.chdir(shop)
    given = "--within OGD() --meta AdaptiveOGD() --holdout 0"
    assert invoke(*TRAIN.replace("--out x", f"--out ogd {given}").split())[0] == 0
    keys = re.findall(r"@\w+\{(\w+),", invoke("cite", "ogd")[1])
    assert keys == ["khodak2019provable", "zinkevich2003online", "bartlett2007adaptive"]


@pytest.mark.parametrize(("line", "said"), [m for name in COMMANDS for m in MISTAKES[name]])
def test_errors_are_one_line_and_exit_code_2(line, said, shop, monkeypatch):
    monkeypatch.chdir(shop)
    code, told = invoke(*line.split())
    assert code == 2 and told.startswith("error: ") and said in told and len(told.splitlines()) == 1
    assert not (shop / "x").exists()


def test_a_guard_inside_another_is_harmless(capsys):
    for raised, code in ((FMRLError("wrong"), 2), (KeyboardInterrupt(), 130), (OSError("no"), 2)):
        with pytest.raises(typer.Exit) as ended, guarded(), guarded():
            raise raised
        assert ended.value.exit_code == code and len(capsys.readouterr().err.splitlines()) == 1


def test_what_follows_the_name_of_a_benchmark_is_its_own(monkeypatch):
    called = []
    monkeypatch.setattr(subprocess, "call", lambda words: called.append(words) or 3)
    for given in (["--help"], ["--quick", "--parts", "fit"]):
        assert invoke("bench", "practice", *given)[0] == 3
        assert called[-1][1].endswith("practice.py") and called[-1][2:] == given
    assert "Which benchmark" in invoke("bench", "--help")[1]


def test_fixes_name_options_of_the_command_line():
    both = "give --kind regression for a quantity, or --kind classification for two classes"
    loss = "pass loss=fmrl.Squared() for a quantity, or loss=fmrl.Logistic() for two classes"
    split = "use apart='gather' to bring its rows together, or apart='split' if they are different"
    cases = {
        "use policy=Policy(missing=...) with 'mean'": "use --missing with 'mean'",
        loss: both,
        f"{split} tasks": "use --apart gather to bring its rows together, "
        "or give different tasks different names",
        "use one_class='keep' to play it": "use --one-class keep to play it",
    }
    assert {text: in_options(text) for text in cases} == cases


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("long") / "table.csv", 5 * WINDOW, 3)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_saves_and_says_how_to_go_on(long, tmp_path):
    out = tmp_path / "run"
    words = ["train", str(long), "--task", "user", "--target", "liked", "--apart", "error"]
    words += ["--holdout", "0", "--no-keep-models", "--out"]
    asked = [*PROGRAM, *words, str(out), "--checkpoint-every", "1"]
    process = subprocess.Popen(asked, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (out / folder.CHECKPOINT).exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "stopping after this window" in told and "Traceback" not in told
    how = r"stopped; ([\d,]+) of 5,120 tasks are saved; go on with: (fmrl train .*)"
    count, again = re.search(how, told).groups()
    saved = int(count.replace(",", ""))
    assert saved % WINDOW == 0 < saved
    code, told = invoke(*shlex.split(again)[1:], "--no-keep-models", "--json")
    assert code == 0 and json.loads(told)["resumed_after"] == saved
    assert invoke(*words, tmp_path / "whole")[0] == 0
    whole = folder.sha256(tmp_path / "whole" / folder.MODEL)
    assert whole == folder.sha256(out / folder.MODEL)


def test_commands_print_their_help():
    for name in COMMANDS:
        code, told = invoke(*name.split(), "--help")
        assert code == 0 and "Usage" in told, name
        assert "Example" in told or name.startswith(("data", "reproduce")), name
    assert "Ctrl-C" in invoke("train", "--help")[1]
