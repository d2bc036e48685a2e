"""The committed page says what the committed records say."""

import doctest
import re
import shutil
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest
from reproduction import authors, convex, deep, markdown
from reproduction.convex_prose import readings

from fmrl import FMRLError
from fmrl.records import write_json
from fmrl.reproduce.convex.claims import judge
from fmrl.reproduce.convex.compositions import SUMMED
from fmrl.reproduce.deep.settings import compare, runs

from .records import TINY, made

ROOT = Path(__file__).parents[2]
CONVEX, DEEP = ROOT / "results" / "convex", ROOT / "results" / "deep"


def test_the_page_is_what_the_records_give():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert page == convex.document(CONVEX) + "\n" + deep.document(DEEP)
    assert "Data: **Mini-Wiki (rebuilt)**" in page  # stand-in data is called by its own name


def test_the_counts_of_the_readme_and_the_studies_are_the_records():
    counts = []
    for name in ("omniglot-record", "omniglot-again"):
        rows = [r for r in compare(deep.read(DEEP)[name]["runs"]) if r["seed"] == 0]
        # In the digits of the log: two differences are two standard errors exactly.
        points = [(round(1e4 * abs(r["difference"])), round(1e4 * r["their error"])) for r in rows]
        alone = sum(apart <= 2 * error for apart, error in points)
        floor = sum(apart <= max(2 * error, 150) for apart, error in points)
        counts.append((len(rows), floor, alone))
    (_, first, alone), (_, second, again) = counts
    assert counts == [(32, first, alone), (32, second, again)]
    assert f"| {first}, {second}; {alone}, {again} |" in (ROOT / "README.md").read_text("utf-8")
    studies = (ROOT / "docs" / "studies.md").read_text("utf-8")
    assert f"{first} of 32 accuracies within 1.5 points" in studies
    assert f"{alone} within two standard errors alone" in studies
    assert f"In a second run {second} and {again}" in studies
    page = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert all(f"standard errors alone: {n}" in page for n in (alone, again))


def test_the_authors_records_stand_beside_ours(tmp_path):
    page = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    records, rows = authors.read(CONVEX), convex.read(CONVEX)["samples"]["results"]["rows"]
    assert len(records) == 6 and "cannot check" not in page
    for curve in records.values():
        assert "| authors | " + " | ".join(
            f"{tar:.3f} ± {1.96 * error:.3f}" for tar, error in curve.values()
        ) in page  # fmt: skip
    factors = authors.factors(rows, records)
    for method in ("strawman", "single-task", "omniscient"):
        assert factors["ftrl", method, SUMMED] < factors["ftrl", method, "FTRL"]
    assert "nearer to theirs in 3 of 3" in " ".join(page.split())
    assert authors.section(rows, tmp_path) == ""  # without the records nothing is said
    by_true = [r | {"within": "FTRL" if r["within"] == SUMMED else r["within"]} for r in rows]
    by_true += [r | {"within": SUMMED} for r in rows if r["within"] == "FTRL"]
    swapped = authors.section([r for r in by_true if r["preset"] == "released"], CONVEX)
    assert "in 3 of 3" not in " ".join(swapped.split())


def test_readings_that_decide_a_yes_are_named():
    """Both radii, and a ratio that rises before it falls; silent where no reading decides."""
    found = convex.read(CONVEX)
    close, rows = (found[figure]["results"]["rows"] for figure in ("similarity", "samples"))
    said = readings(close, rows)
    assert "smallest ball around the optima has 0.308, the one about their mean 0.340" in said
    assert "rises from 3.69 at m = 1 to 5.72 at m = 4 before it falls to 1.20 at m = 32" in said
    assert said in (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    small = [r | {"from_mean": [0.3]} for r in close]
    level = [r | {"mean": 1.0} for r in rows if r["within"] == "OGD"]
    assert readings(small, level) == ""


def test_the_page_writers_are_not_in_the_package():
    for name in ("convex.document", "convex.prose", "deep.report", "deep.markdown", "deep.tiny"):
        assert find_spec(f"fmrl.reproduce.{name}") is None
    package = (ROOT / "src" / "fmrl" / "reproduce").rglob("*.py")
    assert not any("reproduction.md" in path.read_text(encoding="utf-8") for path in package)


def test_pieces_of_the_page():
    found = doctest.testmod(markdown)
    assert found.failed == 0 and found.attempted == 8


@pytest.mark.parametrize("figure", convex.FIGURES)
def test_verdicts_follow_from_the_rows(figure):
    found = convex.read(CONVEX)[figure]
    assert [asdict(v) for v in judge(figure, found["results"]["rows"])] == found["verdicts"]


def test_records_are_small():
    assert sum(p.stat().st_size for p in CONVEX.rglob("*.json")) < 1 << 20


def page(tmp_path, **records) -> str:
    """The page from the project's records with some put in their place."""
    folder, left_out = tmp_path / "deep", shutil.ignore_patterns("tiny*")
    shutil.copytree(DEEP, folder, ignore=left_out, dirs_exist_ok=True)
    for name, record in records.items():
        write_json(folder / f"{name.replace('_', '-')}-record.json", record)
    return deep.document(folder)


def tiny(finished, begun=0, iterations=8000, data=TINY):
    return {"tiny_imagenet_100": made("Mini-ImageNet", data, iterations, finished, begun)}


def test_tiny_imagenet_is_told_by_its_own_name(tmp_path):
    text = page(tmp_path, **tiny(16))
    section = text[text.index("## Tiny ImageNet-100 in the Mini-ImageNet settings") :]
    for said in (
        "140 images a class, 64×64 pixels resized to 84×84, 64 classes to train on and 20 to test",
        "All 16 runs finished, one seed, 8,000 meta-iterations each where the authors' have 20,000",
        "a device in 1,235 seconds",
        "--iterations 8000`",
        "| `m55_i8` | 5-way 5-shot | 15 | 8 | 8,000 | 61.7 ± 1.0 | 58.7 ± 1.0 | 65.7 ± 2.9 |",
        "authors on Mini-ImageNet (another data set)",
        "| 5-way 5-shot | 16 and 32 inner steps end below 8 | yes | 61.7 → 56.8 → 56.1 | yes |",
    ):
        assert said in section
    for word in ("Stopped", "within", "difference |"):  # nothing is compared with another data set
        assert word not in section
    assert "## Not run" not in text
    rows = re.findall(r"^\| `(m\w+)` .*$", section, re.M)
    assert rows == [r.name for r in runs("Mini-ImageNet")]
    drawn = {p.name for p in deep.draw(tmp_path / "deep", tmp_path / "img")}
    assert drawn == set(re.findall(r"\(img/(.*?)\)", text)) > {"deep-tiny-imagenet-100.png"}
    assert all(path.stat().st_size > 20_000 for path in (tmp_path / "img").iterdir())


def test_tiny_imagenet_absent_in_part_or_in_full(tmp_path):
    assert page(tmp_path).count("## Not run") == 1
    whole = page(tmp_path, **tiny(16, iterations=20_000))
    assert "20,000 meta-iterations each as the authors'," in whole
    assert "tiny-imagenet-100 --every 10000` has the plan" in whole
    part = page(tmp_path, **tiny(13, 1))
    assert "13 of 16 runs finished" in part and "## Not run" not in part
    stopped = "Stopped when the time was over: `m55_s20` had 58.8 at meta-iteration 4,000; "
    assert stopped + "`m55_s25` and `m55_s5` had not been" in part
    # What is not finished is not decided.
    assert "| – | not finished → 61.7 | yes | 56.9 → 65.7 |" in part
    assert "| – | not finished → 61.7 | yes | at 1,000 |" in part
    none = page(tmp_path, **tiny(0))
    assert "0 of 16 runs finished" in none and "Ours rest on no finished run" in none
    assert "| `m" not in none
    with pytest.raises(FMRLError, match="is of Pool"):
        page(tmp_path, **tiny(16, data=TINY.replace("Tiny ImageNet-100", "Mini-ImageNet")))


OUTSIDE = "of the {} finished runs lies outside"


@pytest.mark.parametrize(
    ("finished", "begun", "moved", "said"),
    [
        (32, 0, [], ["**32 of 32 runs end within", "accuracy**; none " + OUTSIDE.format(32) + "."]),
        (32, 0, ["o15_i5"], ["**31 of 32 runs", "; 1 (`o15_i5`) " + OUTSIDE.format(32) + "."]),
        (
            31,
            1,
            ["o15_i5", "o15_s5"],
            ["; 2 (`o15_i5` and `o15_s5`) of the 31 finished runs lie outside, and `o55_s5` did"],
        ),
        (30, 2, [], ["**30 of 32", OUTSIDE.format(30) + ", and `o55_s25` and `o55_s5` did not"]),
        (29, 1, [], [OUTSIDE.format(29) + ", and `o55_s20`, `o55_s25` and `o55_s5` did not"]),
    ],
)
def test_the_sentence_on_agreement_for_any_number_of_runs(tmp_path, finished, begun, moved, said):
    record = made("Omniglot", "Pool('Omniglot', …)", 20_000, finished, begun, shift=0.0)
    for name in moved:
        record["runs"][name]["final"]["transductive"]["accuracy"] -= 0.1
    text = page(tmp_path, omniglot=record)
    assert re.search(r"[^\n]*".join(map(re.escape, said)), text)
    assert ("Stopped when the time was over" in text) == (finished < 32)
