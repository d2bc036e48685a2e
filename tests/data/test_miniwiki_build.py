import hashlib
import lzma
from collections import Counter

import numpy as np
import pytest

from fmrl.datasets import Glove, load_miniwiki
from fmrl.datasets.miniwiki_build import SHOTS, build, read_wiki3029
from fmrl.datasets.wordnet import NAMES, WordNet, classify, page_senses

from .conftest import left_behind

# offset, words, hypernyms, gloss: the synsets the cut names and a few below them
SYNSETS = [
    ("00001740", ["entity"], [], "that which is"),
    ("00001930", ["physical_entity"], ["00001740"], "that has physical existence"),
    ("00007846", ["person"], ["00001930"], "a human being"),
    ("00027167", ["location"], ["00001930"], "a point or extent in space"),
    ("09334396", ["land"], ["00001930"], "solid part of the earth"),
    ("09287968", ["geological_formation"], ["00001930"], "the geological features"),
    ("09225146", ["body_of_water"], ["00001930"], "water that covers the earth"),
    ("10000001", ["Ada", "Ada_Lovelace"], ["00007846"], "mathematician who wrote programs"),
    ("10000002", ["Bach"], ["00007846"], "composer of fugues"),
    ("10000003", ["Paris"], ["00027167"], "capital of France"),
    ("10000004", ["Crete"], ["09334396"], "island of Greece"),
    ("10000005", ["tiger"], ["00007846"], "a fierce person"),
    ("10000006", ["tiger"], ["00001930"], "large feline with stripes"),
    ("10000007", ["hammer"], ["00001930"], "tool that strikes"),
    ("10000008", ["justice"], ["00001740"], "being fair"),
    ("10000009", ["music"], ["00001740"], "sounds in time"),
]
GLOVE = Glove({"word": 0}, np.ones((1, 50), np.float32))
PAGES = ["Ada_(person)", "Bach", "Paris", "Crete", "Tiger", "Hammer", "Justice", "Music", "Nolemma"]


def write_wordnet(folder):
    folder.mkdir(parents=True)
    index: dict[str, list[str]] = {}
    with open(folder / "data.noun", "w") as f:
        f.write("  1 a licence\n")
        for offset, words, above, gloss in SYNSETS:
            kind = "@i" if words[0][0].isupper() else "@"
            pointers = " ".join(f"{kind} {h} n 0000" for h in above)
            names = " ".join(f"{w} 0" for w in words)
            head = f"{offset} 03 n {len(words):02x} {names} {len(above):03d} {pointers}"
            f.write(f'{head} | {gloss}; "an example"  \n')
            for w in words:
                index.setdefault(w.lower(), []).append(offset)
    lines = [f"{w} n {len(o)} 1 @ {len(o)} 0 {' '.join(o)}  " for w, o in sorted(index.items())]
    (folder / "index.noun").write_text("  1 a licence\n" + "\n".join(lines) + "\n")
    return folder


@pytest.fixture
def sources(tmp_path):
    rows = []
    for p in PAGES:
        for k in range(40):
            stripes = "feline stripes " if p == "Tiger" else ""
            rows.append(f"{p}\t{p} sentence {k}, {stripes}isn't it? {'word ' * (k % 13)}")
        rows.append(rows[-1])  # a repeated sentence
    path = tmp_path / "wiki3029.tsv.xz"
    path.write_bytes(lzma.compress(("\n".join(rows) + "\n").encode()))
    return path, write_wordnet(tmp_path / "wordnet")


def digests(folder):
    return {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in left_behind(folder)}


def test_recipe(sources, tmp_path):
    built = build(*sources, tmp_path / "out")
    assert {n: sorted(p) for n, p in built.classes.items()} == {
        "person": ["Ada_(person)", "Bach"],
        "place": ["Crete", "Paris"],
        "thing": ["Hammer", "Tiger"],
        "idea": ["Justice", "Music"],
    }
    assert len(built.tasks) == 2 and built.pages == 8
    pages = [p for t in built.tasks for p in t]
    assert len(set(pages)) == len(pages) == 8  # no page in two tasks


def test_files_are_nested_balanced_shuffled_and_longest_first(sources, tmp_path):
    root = build(*sources, tmp_path / "out").path / "miniwikinet"
    for i in (0, 1):
        split = next(s for s in ("train", "dev", "test") if (root / f"bal/{s}/1/{i}.txt").exists())
        files = {m: (root / f"bal/{split}/{m}/{i}.txt").read_text().splitlines() for m in SHOTS}
        raw = (root / f"raw/{i}.txt").read_text().splitlines()
        assert len(raw) == len(set(raw)) == 160
        for m, lines in files.items():
            assert Counter(line[0] for line in lines) == dict.fromkeys("0123", m)
            bigger = files.get(2 * m, raw)
            assert [
                line for line in bigger if line in set(lines)
            ] == lines  # nested, in the same order
            for c in "0123":
                shortest = min(len(line.split()) for line in lines if line[0] == c)
                assert sum(len(line.split()) > shortest for line in raw if line[0] == c) < m
        labels = [line[0] for line in files[32]]
        assert labels != sorted(labels)


def test_two_builds_are_the_same_bytes(sources, tmp_path):
    a = build(*sources, tmp_path / "a", tarball=True)
    b = build(*sources, tmp_path / "b", tarball=True)
    assert digests(a.path) == digests(b.path) and len(digests(a.path)) == 2 * 7 + 2
    c = build(*sources, tmp_path / "c", seed=1, tarball=True)
    assert digests(a.path) != digests(c.path)
    held = load_miniwiki(a.path / "mini-wiki-rebuilt.tar.gz", split="all", glove=GLOVE)
    assert held.name == "Mini-Wiki (rebuilt)" and len(held) == 2


def test_a_page_may_serve_twice_only_when_asked(sources, tmp_path):
    path, wordnet = sources
    rows = [
        line
        for line in lzma.decompress(path.read_bytes()).decode().splitlines()
        if not line.startswith("Bach")
    ]
    path.write_bytes(lzma.compress("\n".join(rows).encode()))
    assert len(build(path, wordnet, tmp_path / "a").tasks) == 1
    again = build(path, wordnet, tmp_path / "b", reuse=True)
    assert [t[0] for t in again.tasks] == ["Ada_(person)"] * 2


def test_the_page_chooses_the_sense(sources):
    net = WordNet.load(sources[1])
    senses = page_senses(net, read_wiki3029(sources[0]))
    assert (
        senses["Tiger"] == "10000006"
    )  # the page speaks of stripes, though the first sense is a person
    assert "Nolemma" not in senses and set(classify(net, senses)) == set(NAMES)
