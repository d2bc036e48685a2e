"""The deep half of docs/reproduction.md and its pictures, written from the records in results/deep so that no number can drift."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fmrl.deep.claims import FAMILIES, MIDDLE, judge
from fmrl.deep.settings import compare, reference

PICTURES = {"5-way": ("o15", "o55"), "20-way": ("o120", "o520")}
COLOURS = ("firebrick", "navy", "darkgreen", "darkorange", "purple")


def read(folder: Path) -> dict[str, Any]:
    """Every record under ``folder`` by name."""
    return {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted(Path(folder).glob("*.json"))}


def draw(results: dict[str, dict], out: Path) -> list[Path]:
    """The appendix's figures: accuracy against meta-iterations, one curve a setting; ours solid, the authors' log dashed."""
    from matplotlib.figure import Figure

    paths = []
    for name, families in PICTURES.items():
        figure = Figure(figsize=(15, 3.6), layout="constrained")
        panels = figure.subplots(1, 4)
        for pair, family in zip((panels[:2], panels[2:]), families, strict=True):
            middle = MIDDLE[family]
            shots = {5: f"{family}_s5", 10: f"{family}_i{middle}"} | {n: f"{family}_s{n}" for n in (15, 20, 25)}
            steps = {n: f"{family}_i{n}" for n in (5, 10, 20, 40)}
            for axes, runs, what in zip(pair, (shots, steps), ("training samples a class", "inner steps"), strict=True):
                for colour, (value, run) in zip(COLOURS, runs.items(), strict=False):
                    if run in results:
                        axes.plot(*zip(*results[run]["curve"], strict=True), color=colour, label=str(value), marker=".")
                    axes.plot(
                        *zip(*reference()[run]["test_curve"][1:], strict=True), color=colour, linestyle="--", linewidth=0.8
                    )
                axes.set_title(f"Omniglot {FAMILIES[family]}", fontsize=10)
                axes.set_xlabel("meta-iterations")
                axes.legend(title=what, fontsize=7, title_fontsize=7)
        panels[0].set_ylabel("test accuracy, transductive")
        paths.append(Path(out) / f"deep-omniglot-{name}.png")
        figure.savefig(paths[-1], dpi=100, metadata={"Software": None})
    return paths


def document(folder: Path) -> str:
    """The deep part of the page in Markdown."""
    records = read(folder)
    main = records["omniglot-record"]
    rows = compare(main["runs"])
    within, done = sum(r["within"] for r in rows), len(rows)
    unfinished = [k for k, r in main["runs"].items() if "final" not in r]
    other = records["omniglot-other-splits"]
    before = [r for r in compare(other["runs"]) if r["seed"] == 0]
    parts = [
        "# Reproduction of the deep figures",
        "This part is written by `python scripts/write_reproduction.py` from the records in `results/deep`. Reptile (last iterate, "
        "interpolating meta-step) in the authors' 32 Omniglot settings, on the authors' own split of the characters, one run each, on one "
        f"{main['configuration']['device']} in {main['training seconds']:.0f} seconds, training and evaluation "
        "(`fmrl reproduce deep` runs the same settings). Curves are transductive; solid lines are ours, dashed ones the authors' log.",
        f"**{within} of 32 runs end within max(2 standard errors, 1.5 points) of the authors' test accuracy**; {done - within} "
        f"of the {done} finished runs lies outside" + (f", and {_listed(unfinished)} did not finish." if unfinished else "."),
        f"A first study of the same runs on another split took {other['training seconds']:.0f} seconds and had "
        f"{sum(r['within'] for r in before)} of {len(before)} finished runs within; those outside were all above the authors. Their "
        "split was rebuilt (`fmrl.deep.reproduce.split`) and used after that was seen.",
        *(f"![Omniglot {name}](img/deep-omniglot-{name}.png)" for name in PICTURES),
        "## Run by run",
        _runs(rows),
        _left(unfinished, main["runs"]),
        "## Seeds",
        _seeds(main["runs"], other["runs"]),
        "## Verdicts on the paper's claims",
        _verdicts(main["runs"]),
        "## What decides the agreement",
        _causes(records["hypotheses"], records["summed-loss"]),
        "## Not run",
        "The 16 Mini-ImageNet settings on Tiny ImageNet-100: `fmrl reproduce deep --set tiny-imagenet-100` runs them; no record of a full "
        "or shortened run exists, and none is claimed.",
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def _listed(names: list[str]) -> str:
    return " and ".join(f"`{n}`" for n in names)


def _runs(rows: list[dict]) -> str:
    lines = []
    for r in sorted(rows, key=lambda r: list(reference()).index(r["run"])):
        s = reference()[r["run"]]
        lines.append([
            f"`{r['run']}`", f"{s['classes']}-way {s['shots']}-shot", str(s["train_shots"]), str(s["inner_iters"]),
            f"{100 * r['ours']:.1f} ± {196 * r['error']:.1f}", f"{100 * r['inductive']:.1f}",
            f"{100 * r['theirs']:.1f} ± {196 * r['their error']:.1f}", f"{100 * r['difference']:+.1f}", "yes" if r["within"] else "**no**",
        ])  # fmt: skip
    head = ["run", "task", "training samples", "inner steps", "ours, transductive", "ours, inductive", "authors, transductive"]
    return _table([*head, "difference", "within"], lines)


def _left(unfinished: list[str], results: dict[str, dict]) -> str:
    lines = []
    for name in unfinished:
        if results[name]["curve"]:
            at, accuracy = results[name]["curve"][-1]
            logged = dict(map(tuple, reference()[name]["test_curve"])).get(at)
            beside = f" (authors {100 * logged:.1f})" if logged else ""
            lines.append(f"`{name}` had {100 * accuracy:.1f} at meta-iteration {at:,}{beside}")
    return "Stopped when the time was over: " + "; ".join(lines) + "." if lines else ""


def _seeds(main: dict[str, dict], other: dict[str, dict]) -> str:
    def cell(result: dict | None) -> str:
        return "–" if result is None or "final" not in result else " / ".join(
            f"{100 * result['final'][p]['accuracy']:.1f}" for p in ("transductive", "inductive")
        )  # fmt: skip

    lines = []
    for n in [n for n in reference() if f"{n}@1" in other]:
        logged = f"{100 * reference()[n]['accuracy']['test']:.1f}"
        lines.append([f"`{n}`", cell(main.get(n)), *(cell(other.get(k)) for k in (n, f"{n}@1", f"{n}@2")), logged])
    head = ["run", "authors' split", "other split 1", "other split 2", "other split 3", "authors"]
    about = (
        "Transductive / inductive accuracy of one setting per family with other splits of the characters, other initialisations and "
        "other tasks. The authors ran one seed, and all their runs share one split: what the split does to one of them it does to all."
    )
    return about + "\n\n" + _table(head, lines)


def _verdicts(results: dict[str, dict]) -> str:
    words = {True: "yes", False: "**no**", None: "–"}
    return _table(
        ["task", "claim", "ours", "numbers", "authors' log", "numbers"],
        [[c.family, c.text, words[c.ours], c.ours_numbers, words[c.theirs], c.theirs_numbers] for c in judge(results)],
    )


def _logged() -> str:
    """The authors' four runs of that setting, at the same meta-iteration."""
    curves = [dict(map(tuple, reference()[f"o15_{n}"]["test_curve"])) for n in ("i5", "s15", "s20", "s25")]
    return ", ".join(f"{100 * c[1000]:.1f}" for c in curves) + " in the four runs that draw as many samples"


def _causes(hypotheses: dict, summed: dict) -> str:
    lines = []
    for r in hypotheses["rows"]:
        found = [f"{100 * r['accuracy'][i]:.1f}" if i in r["accuracy"] else "–" for i in ("1000", "2000")]
        lines.append([r["setting"], r["change"], *found, r["authors"]])
    means = {r["loss"]: r for r in summed["rows"] if r["shots"] == 1}
    whole = hypotheses["20-way, 10 steps, in full"]["moments shared by a meta-batch"]
    ends = next(r["accuracy"] for r in whole if (r["iteration"], r["shots"], r["classes"]) == (20_000, 1, "test"))
    return (
        "The authors' loss is the *sum* over a mini-batch. Adam does not feel that in training, but its moments are carried from training "
        "mini-batches of 10 (20) to test mini-batches of 5 (10), and there the sum makes every step half as long as the mean would. "
        f"At meta-iteration 1,001 of `o15_i5` one and the same phi has {100 * means['mean']['accuracy']:.1f} with the mean and "
        f"{100 * means['sum']['accuracy']:.1f} with the sum (authors: {_logged()}). With the mean, `o120_i10` ends at "
        f"{', '.join(f'{100 * a:.1f}' for a in ends)} (three seeds; authors {100 * reference()['o120_i10']['accuracy']['test']:.1f}).\n\n"
        "What else was tried, with the mean (accuracy at 1 shot, three seeds). How moments are handed on within a meta-batch, eps and the "
        "scale of pixels do not matter; the step, moments that start at zero and fewer tasks do, and none gives the authors' curve:\n\n"
        + _table(["setting", "change", "at 1,000", "at 2,000", "authors at 1,000 / 2,000"], lines)
    )
