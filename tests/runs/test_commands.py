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
from faults import digests, invoke, write_table

from fmrl.cli import adapt, cite, report
from fmrl.cli import train as train_module
from fmrl.cli.guard import in_options
from fmrl.estimators.playing import WINDOW
from fmrl.runs import folder

PROGRAM = [sys.executable, "-c", "from fmrl.cli.main import run; run()"]


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
    frame = pl.DataFrame(
        {
            "shop": np.repeat([f"shop{i}" for i in range(40)], 10),
            "day": np.tile(np.arange(10), 40),
            "price": rng.normal(size=n),
        }
    )
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
    commands += [report.report_command, cite.cite_command]
    listed = [words for command in commands for words in examples(command)]
    assert len(listed) == 12
    for words in listed:
        if "ray" in words:  # test_cluster.py has a cluster, and runs it
            continue
        code, told = invoke(
            *words,
            *(["--evaluate", "3"] if words[0] == "train" and "--resume" not in words else []),
        )
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
    assert {"heldout", "learned", "curves", "similarity", "certificate", "run", "bibtex"} <= set(
        facts
    )
    assert facts["learned"]["coefficients"][0]["feature"] == "price"
    assert facts["run"]["command"].startswith(
        "fmrl train visits.csv --task shop --target sold --out"
    )


def test_references_are_those_of_the_parts_used(shop, monkeypatch):
    monkeypatch.chdir(shop)
    given = ["--within", "OGD()", "--meta", "AdaptiveOGD()", "--holdout", "0"]
    assert (
        invoke("train", "visits.csv", "--task", "shop", "--target", "sold", "--out", "ogd", *given)[
            0
        ]
        == 0
    )
    told = invoke("cite", "ogd")[1]
    keys = re.findall(r"@\w+\{(\w+),", told)
    assert keys == ["khodak2019provable", "zinkevich2003online", "bartlett2007adaptive"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["train", "none.csv", "--task", "a", "--target", "b", "--out", "x"],
            "none.csv does not exist",
        ),
        (
            [
                "train",
                "visits.csv",
                "--task",
                "shop",
                "--target",
                "sold",
                "--out",
                "x",
                "--kind",
                "odd",
            ],
            "--kind odd is unknown",
        ),
        (
            [
                "train",
                "visits.csv",
                "--task",
                "shop",
                "--target",
                "day",
                "--out",
                "x",
                "--order",
                "[x]",
            ],
            "there is no column '[x]'",
        ),
        (["report", "visits.csv"], "is no folder of a run"),
        (["predict", "shop", "visits.csv", "--out", "x.csv"], "is no folder of a run"),
        (["adapt", "nothing", "visits.csv"], "is no folder of a run"),
        (["cite", "."], "is no folder of a run"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(words, said, shop, monkeypatch):
    monkeypatch.chdir(shop)
    code, told = invoke(*words)
    assert code == 2 and told.startswith("error: ") and said in told and len(told.splitlines()) == 1
    assert not (shop / "x").exists()


def test_fixes_name_options_of_the_command_line():
    cases = {
        "use policy=Policy(missing=...) with 'indicator', 'mean' or 'drop'": "use --missing with 'indicator', 'mean' or 'drop'",
        "pass loss=fmrl.Squared() for a quantity, or loss=fmrl.Logistic() for two classes": (
            "give --kind regression for a quantity, or --kind classification for two classes"
        ),
        "use apart='gather' to bring its rows together, or apart='split' if they are different tasks": (
            "use --apart gather to bring its rows together, or give different tasks different names"
        ),
        "use one_class='keep' to play it": "use --one-class keep to play it",
    }
    assert {text: in_options(text) for text in cases} == cases


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("long") / "table.csv", 8 * WINDOW, 3)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_saves_and_says_how_to_go_on(long, tmp_path):
    words = [
        "train",
        str(long),
        "--task",
        "user",
        "--target",
        "liked",
        "--apart",
        "error",
        "--out",
        str(tmp_path / "run"),
    ]
    words += ["--holdout", "0", "--no-keep-models"]
    process = subprocess.Popen(
        [*PROGRAM, *words, "--checkpoint-every", "1"], stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (tmp_path / "run" / folder.CHECKPOINT).exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "stopping after this window" in told and "Traceback" not in told
    count, again = re.search(
        r"stopped; ([\d,]+) of 8,192 tasks are saved; go on with: (fmrl train .*)", told
    ).groups()
    assert int(count.replace(",", "")) % WINDOW == 0 < int(count.replace(",", ""))
    code, told = invoke(*shlex.split(again)[1:], "--no-keep-models", "--json")
    assert code == 0 and json.loads(told)["resumed_after"] == int(count.replace(",", ""))
    words[words.index("--out") + 1] = str(tmp_path / "whole")
    assert invoke(*words)[0] == 0
    assert folder.sha256(tmp_path / "whole" / folder.MODEL) == folder.sha256(
        tmp_path / "run" / folder.MODEL
    )


def test_commands_print_their_help():
    for name in ("train", "adapt", "predict", "report", "certify", "cite"):
        code, told = invoke(name, "--help")
        assert code == 0 and "Example" in told, name
    assert "Ctrl-C" in invoke("train", "--help")[1]


def test_digests_are_of_whole_runs(shop, monkeypatch):
    monkeypatch.chdir(shop)
    assert set(digests(shop / "run")) == {
        folder.MODEL,
        folder.HISTORY,
        folder.TASKS,
        folder.HELDOUT,
        folder.MODELS,
    }
