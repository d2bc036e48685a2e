"""The deep half of the reproduction page says what the records say."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

from fmrl import FMRLError
from fmrl.cli import reproduce_deep as deep_cli
from fmrl.cli.main import app
from fmrl.deep.tasks import Pool
from fmrl.reproduce.deep import figures
from fmrl.reproduce.deep.claims import Point, first, judge, level, reached, rises
from fmrl.reproduce.deep.report import document, draw, read
from fmrl.reproduce.deep.reproduce import Plan
from fmrl.reproduce.deep.settings import compare, reference, runs

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results" / "deep"


def test_the_page_is_written_from_the_records():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert page.endswith("\n" + document(RECORDS))


def test_at_least_29_runs_within_and_none_invented(tmp_path):
    results = read(RECORDS)["omniglot-record"]["runs"]
    rows = compare(results)
    assert len(results) == 32 and sum(r["within"] for r in rows) >= 29
    assert len(rows) == sum(
        "final" in r for r in results.values()
    )  # unfinished runs are not counted
    assert all(path.stat().st_size > 20_000 for path in figures.draw(results, tmp_path))


def test_rules_of_the_verdicts():
    low, high = Point(0.90, 0.005, [(1000, 0.8)]), Point(0.95, 0.005, [(1000, 0.85), (2000, 0.91)])
    assert (
        rises([low, high]) and not rises([high, low]) and not rises([low, Point(0.91, 0.005, [])])
    )
    assert level([low, Point(0.91, 0.0, [])]) and not level([low, high])
    assert reached([low, high]) == 2000 and reached([high, low]) is None
    assert rises([low, None]) is None
    assert (
        first([high, low, low])
        and not first([high, low, Point(0.945, 0.005, [])])
        and first([high, None]) is None
    )


def made(
    settings: str, data: str, iterations: int, finished: int, begun: int, shift: float = -0.04
) -> dict:
    """A study's record with the authors' accuracies moved by ``shift``: ``finished`` runs, then
    ``begun`` ones with one look.
    """
    results = {}
    for i, r in enumerate(runs(settings)[: finished + begun]):
        end = round(reference()[r.name]["accuracy"]["test"] + shift, 5)
        results[r.name] = {"curve": [[iterations // 2, round(end - 0.02, 5)]]}
        if i < finished:
            results[r.name]["curve"].append([iterations, end])
            ends = {"transductive": (end, 1000), "inductive": (round(end - 0.03, 5), 250)}
            results[r.name]["final"] = {
                p: {"accuracy": a, "error": 0.005, "tasks": n} for p, (a, n) in ends.items()
            }
    plan = Plan(every=iterations // 2, iterations=None if iterations == 20_000 else iterations)
    about = {
        "configuration": {"device": "a device"},
        "plan": repr(plan),
        "data": data,
        "training seconds": 1234.6,
    }
    return about | {"runs": results}


TINY = "Pool('Tiny ImageNet-100', 64 classes, 8,960 inputs (3, 84, 84))"


def page(tmp_path, **records) -> str:
    """The page from the project's records with some put in their place."""
    shutil.copytree(
        RECORDS, tmp_path / "deep", ignore=shutil.ignore_patterns("tiny*"), dirs_exist_ok=True
    )
    for name, record in records.items():
        (tmp_path / "deep" / f"{name.replace('_', '-')}-record.json").write_text(
            json.dumps(record), encoding="utf-8"
        )
    return document(tmp_path / "deep")


def test_tiny_imagenet_is_told_by_its_own_name(tmp_path):
    record = made("Mini-ImageNet", TINY, 8000, 16, 0)
    text = page(tmp_path, tiny_imagenet_100=record)
    assert "## Not run" not in text
    section = text[text.index("## Tiny ImageNet-100 in the Mini-ImageNet settings") :]
    assert (
        "140 images a class, 64×64 pixels resized to 84×84, 64 classes to train on and 20 to test on"
        in section
    )
    assert (
        "All 16 runs finished, one seed, 8,000 meta-iterations each where the authors' have 20,000"
        in section
    )
    assert (
        "a device in 1,235 seconds" in section
        and "--iterations 8000`" in section
        and "Stopped" not in section
    )
    rows = re.findall(r"^\| `(m\w+)` .*$", section, re.M)
    assert rows == [r.name for r in runs("Mini-ImageNet")]
    assert (
        "| `m55_i8` | 5-way 5-shot | 15 | 8 | 8,000 | 61.7 ± 1.0 | 58.7 ± 1.0 | 65.7 ± 2.9 |"
        in section
    )
    assert (
        "within" not in section and "difference |" not in section
    )  # nothing is compared with another data set
    assert "authors on Mini-ImageNet (another data set)" in section
    assert (
        "| 5-way 5-shot | 16 and 32 inner steps end below 8 | yes | 61.7 → 56.8 → 56.1 | yes | 65.7 → 60.8 → 60.1 |"
        in section
    )
    (tmp_path / "img").mkdir()
    drawn = {p.name for p in draw(tmp_path / "deep", tmp_path / "img")}
    assert (
        drawn == set(re.findall(r"\(img/(.*?)\)", text)) and "deep-tiny-imagenet-100.png" in drawn
    )


def test_tiny_imagenet_absent_in_part_or_in_full(tmp_path):
    assert page(tmp_path).count("## Not run") == 1
    whole = page(tmp_path, tiny_imagenet_100=made("Mini-ImageNet", TINY, 20_000, 16, 0))
    assert (
        "20,000 meta-iterations each as the authors'," in whole
        and "tiny-imagenet-100 --every 10000` has the plan" in whole
    )
    part = page(tmp_path, tiny_imagenet_100=made("Mini-ImageNet", TINY, 8000, 13, 1))
    assert "13 of 16 runs finished" in part and "## Not run" not in part
    assert (
        "Stopped when the time was over: `m55_s20` had 58.8 at meta-iteration 4,000; `m55_s25` and `m55_s5` had not been"
        in part
    )
    assert (
        "| – | not finished → 61.7 | yes | 56.9 → 65.7 |" in part
    )  # what is not finished is not decided
    assert "| – | not finished | yes | at 1,000 |" in part
    none = page(tmp_path, tiny_imagenet_100=made("Mini-ImageNet", TINY, 8000, 0, 0))
    assert (
        "0 of 16 runs finished" in none
        and "Ours rest on no finished run" in none
        and "| `m" not in none
    )
    with pytest.raises(FMRLError, match="is of Pool"):
        page(
            tmp_path,
            tiny_imagenet_100=made(
                "Mini-ImageNet", TINY.replace("Tiny ImageNet-100", "Mini-ImageNet"), 8000, 16, 0
            ),
        )


@pytest.mark.parametrize(
    ("finished", "begun", "moved", "said"),
    [
        (
            32,
            0,
            {},
            "**32 of 32 runs end within* authors' test accuracy**; none of the 32 finished runs lies outside.",
        ),
        (
            32,
            0,
            {"o15_i5": 0.1},
            "**31 of 32 runs* accuracy**; 1 (`o15_i5`) of the 32 finished runs lies outside.",
        ),
        (
            31,
            1,
            {"o15_i5": 0.1, "o15_s5": 0.1},
            "; 2 (`o15_i5` and `o15_s5`) of the 31 finished runs lie outside, and `o55_s5` did",
        ),
        (
            30,
            2,
            {},
            "**30 of 32* of the 30 finished runs lies outside, and `o55_s25` and `o55_s5` did not finish.",
        ),
        (
            29,
            1,
            {},
            "of the 29 finished runs lies outside, and `o55_s20`, `o55_s25` and `o55_s5` did not finish.",
        ),
    ],
)
def test_the_sentence_on_agreement_for_any_number_of_runs(tmp_path, finished, begun, moved, said):
    record = made("Omniglot", "Pool('Omniglot', …)", 20_000, finished, begun, shift=0.0)
    for name, by in moved.items():
        record["runs"][name]["final"]["transductive"]["accuracy"] -= by
    text = page(tmp_path, omniglot=record)
    assert re.search(r"[^\n]*".join(map(re.escape, said.split("* "))), text)
    assert ("Stopped when the time was over" in text) == (finished < 32)


def test_what_the_paper_says_of_mini_imagenet_can_hold_or_not():
    record = made("Mini-ImageNet", TINY, 8000, 16, 0)["runs"]
    told = {(c.family, c.text): c.ours for c in judge(record, "Mini-ImageNet")}
    assert (
        len(told) == 14
        and told["5-way 1-shot", "15 training samples a class beat 5 training samples"]
    )
    record["m15_i8"]["final"]["transductive"]["accuracy"] = 0.3
    record["m15_i8"]["curve"] = [[4000, 0.2], [8000, 0.3]]
    now = {(c.family, c.text): c for c in judge(record, "Mini-ImageNet")}
    changed = {k[1] for k, c in now.items() if c.ours != told[k]}
    assert {k[0] for k, c in now.items() if c.ours != told[k]} == {"5-way 1-shot"}
    assert {
        "15 training samples a class beat 5 training samples",
        "8 inner steps beat 4",
    } <= changed
    sooner = now[
        "5-way 1-shot",
        "with 15 samples a class the accuracy that 5 end with is reached before the last meta-iteration",
    ]
    assert sooner.ours is False and sooner.ours_numbers == "not reached"
    record["m15_i8"]["curve"] = [[4000, 0.2], [8000, 0.9]]  # at its end, so not before
    assert not next(c for c in judge(record, "Mini-ImageNet") if c.text == sooner.text).ours
    assert {c.text for c in judge(record, "Mini-ImageNet", "iterations")} < {
        text for _, text in now
    }


@pytest.mark.parametrize(
    ("sweep", "on", "settings", "pictures", "claims"),
    [
        ("deep", "tiny-imagenet-100", "Mini-ImageNet", ["deep-tiny-imagenet-100.png"], 14),
        ("iterations", "mini-imagenet", "Mini-ImageNet", ["deep-mini-imagenet.png"], 6),
        (
            "shots",
            "omniglot",
            "Omniglot",
            ["deep-omniglot-20-way.png", "deep-omniglot-5-way.png"],
            12,
        ),
    ],
)
def test_the_command_leaves_figures_and_verdicts_beside_its_record(
    tmp_path, monkeypatch, sweep, on, settings, pictures, claims
):
    pool = Pool.of(np.zeros((4, 8, 8), np.uint8), np.repeat(np.arange(2), 2))
    plan = Plan(
        iterations=3 if on == "omniglot" else 1, **deep_cli.SMALL
    )  # that of --quick, and everything is done
    record = made(settings, "Pool", 10, 48, 0) | {"plan": repr(plan), "data": repr(pool)}
    (tmp_path / "record.json").write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(
        deep_cli, "_pools", lambda on, data, device: (pool, pool, lambda run: (None, None))
    )
    result = CliRunner().invoke(
        app, ["reproduce", sweep, "--set", on, "--quick", "--device", "cpu", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in tmp_path.glob("*.png")) == pictures
    assert all(f"figure: {tmp_path / name}" in result.output for name in pictures)
    told = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert len(told) == claims and all(v["ours"] is not None for v in told)
    assert "What the paper says" in result.output
