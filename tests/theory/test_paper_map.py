"""The theory map has every numbered item of the paper, each with a function and a test that exist.

The list of items is kept here, so that it is checked wherever the tests run; where the paper's
source lies beside the checkout, the list is counted again as LaTeX counts."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAPER = ROOT.parent / "shared" / "paper" / "fmrl.tex"
PAGE = ROOT / "docs" / "theory-map.md"
ITEMS = """
Equation 1, Equation 2, Algorithm 1, Equation 3, Equation 4, Equation 5, Definition 2.1, Figure 1,
Setting 2.1, Definition 2.2, Definition 2.3, Theorem 2.1, Remark 2.1, Algorithm 2, Theorem 2.2,
Definition 3.1, Figure 2, Setting 3.1, Theorem 3.1, Theorem 3.2, Figure 3, Figure 4, Figure 5,
Figure 6, Definition A.1, Definition A.2, Definition A.3, Claim A.1, Definition A.4, Definition A.5,
Definition A.6, Theorem A.1, Definition A.7, Definition A.8, Theorem A.2, Claim A.2,
Proposition A.1, Proposition A.2, Corollary A.1, Setting B.1, Lemma B.1, Lemma B.2, Theorem B.1,
Corollary B.1, Theorem B.2, Lemma B.3, Proposition B.1, Corollary B.2, Lemma B.4, Lemma B.5,
Proposition B.2, Corollary B.3, Lemma B.6, Proposition B.3, Corollary B.4, Theorem B.3, Equation 6,
Figure 7, Figure 8, Figure 9
"""
ITEMS = [item.strip() for item in ITEMS.replace("\n", " ").split(",")]


def numbered(source):
    """Every numbered item of a LaTeX source, in its order: theorems count within sections, figures,
    algorithms and equations throughout, and sections after the appendix have letters."""
    source = re.sub(r"(?<!\\)%.*", "", source)
    kinds = dict(re.findall(r"\\newtheorem\{(\w+)\}\{(\w+)\}\[section\]", source))
    assert len(kinds) == len(re.findall(r"\\newtheorem", source)), "a theorem that counts otherwise"
    kinds |= {"figure": "Figure", "algorithm": "Algorithm", "equation": "Equation"}
    body = source[source.index(r"\begin{document}") :]
    section, letters, counts, found = 0, False, {}, []
    for appendix, heading, kind in re.findall(
        r"(\\appendix)|(\\section\{)|\\begin\{(\w+)\*?\}", body
    ):
        if appendix:
            section, letters = 0, True
        elif heading:
            section, counts = section + 1, {k: n for k, n in counts.items() if k[0].islower()}
        elif kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
            place = "" if kind[0].islower() else f"{chr(64 + section) if letters else section}."
            found.append(f"{kinds[kind]} {place}{counts[kind]}")
    return found


@cache
def functions_of(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def exists(name):
    """Whether a dotted name leads to something: modules first, then attributes."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def problems(page):
    """What is wrong with the map: items that are missing, twice or out of order, functions and
    tests that do not exist, rows without either."""
    told, items = [], []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|") or line.startswith(
            ("|---", "| item |", "| result |", "| for ")
        ):
            continue
        if len(cells) != 4:
            told.append(f"not four cells: {line}")
            continue
        what, _, functions, tests = cells
        items += [what] if re.fullmatch(r"[A-Z]\w+ (\w\.)?\d+", what) else []
        names = re.findall(r"`(fmrl\.[\w.]+)`", functions)
        told += [f"{what}: no function"] if "`" not in functions else []
        told += [f"{what}: {name} does not exist" for name in names if not exists(name)]
        file, named = None, re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", tests)
        told += [f"{what}: no test"] if not named else []
        for path, test in named:
            file = ROOT / path if path else file
            if file is None or not file.exists():
                told.append(f"{what}: {path} does not exist")
            elif test and test not in functions_of(file):
                told.append(f"{what}: {file.name}::{test} does not exist")
    told += [f"{item} is missing" for item in ITEMS if item not in items]
    told += [f"{item} is there twice" for item in sorted(set(items)) if items.count(item) > 1]
    if not told and items != ITEMS:
        told.append("items are not in the paper's order, or not the paper's")
    return told


def test_every_item_of_the_paper_has_its_function_and_its_test():
    assert len(ITEMS) == 60 == len(set(ITEMS))
    assert not problems(PAGE.read_text(encoding="utf-8"))


def test_the_list_is_the_papers():
    if not PAPER.exists():
        pytest.skip("the paper's source is not beside the checkout")
    assert numbered(PAPER.read_text(encoding="utf-8")) == ITEMS


def test_the_count_is_latexs():
    source = r"""\newtheorem{Lem}{Lemma}[section] \newtheorem{Thm}{Theorem}[section]
    \begin{document} \section{One} \begin{Lem} % \begin{Lem}
    \begin{equation} \section*{Not counted} \begin{Thm} \subsection{a} \begin{Lem}
    \section{Two} \begin{Lem} \begin{figure*} \begin{align*} \begin{equation*}
    \appendix \section{Three} \begin{Lem} \begin{figure}"""
    source = source.replace(r"\begin{equation*}", "")
    expected = (
        "Lemma 1.1, Equation 1, Theorem 1.1, Lemma 1.2, Lemma 2.1, Figure 1, Lemma A.1, Figure 2"
    )
    assert numbered(source) == expected.split(", ")


def test_the_map_cannot_lose_anything_unseen():
    page = PAGE.read_text(encoding="utf-8")
    lines = page.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("| Lemma B.5 |"))
    without = "\n".join(lines[:row] + lines[row + 1 :])
    assert problems(without) == ["Lemma B.5 is missing"]
    assert problems(page.replace("`fmrl.bounds.excess`", "`fmrl.bounds.excessive`")) == [
        "Lemma B.4: fmrl.bounds.excessive does not exist"
    ]
    assert problems(page.replace("::test_sums_of_deviations`", "::test_sums`")) == [
        "Lemma B.5: test_paper_lemmas.py::test_sums does not exist"
    ]
    assert problems(page.replace("`fmrl.bounds.mean_action_risk`", "")) == [
        "Proposition A.1: no function"
    ]
    swapped = [*lines[: row - 1], lines[row], lines[row - 1], *lines[row + 1 :]]
    assert len(problems("\n".join(swapped))) == 1
    assert problems("\n".join([*lines[: row + 1], *lines[row:]])) == ["Lemma B.5 is there twice"]
