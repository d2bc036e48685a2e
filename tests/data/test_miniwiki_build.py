import hashlib
import json
import lzma
import shutil
import time
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from fmrl.cli.data import app
from fmrl.datasets import Glove, load_miniwiki
from fmrl.datasets.miniwiki_build import SHOTS, _files, _splits, _tasks, build, read_wiki3029
from fmrl.datasets.wordnet import NAMES, WordNet, classify, page_senses
from fmrl.errors import ArchiveError, LayoutError

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
            # nested, in the same order
            assert [line for line in bigger if line in set(lines)] == lines
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
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    rows = [line for line in lines if not line.startswith("Bach")]
    path.write_bytes(lzma.compress("\n".join(rows).encode()))
    assert len(build(path, wordnet, tmp_path / "a").tasks) == 1
    again = build(path, wordnet, tmp_path / "b", reuse=True)
    assert [t[0] for t in again.tasks] == ["Ada_(person)"] * 2


def test_the_page_chooses_the_sense(sources):
    net = WordNet.load(sources[1])
    senses = page_senses(net, read_wiki3029(sources[0]))
    # The page speaks of stripes, though the first sense is a person.
    assert senses["Tiger"] == "10000006"
    assert "Nolemma" not in senses and set(classify(net, senses)) == set(NAMES)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw.replace(b"sentence 7", b"caf\xe9", 1), "line 8 is not UTF-8"),
        (lambda raw: b"no tab here\n", "has no tab"),
        (lambda raw: b"", "holds no page"),
        (lambda raw: b"Bach\tone\n", "no page falls into"),
        (lambda raw: b"\n".join(raw.split(b"\n")[::2]), "sentences, 32 are needed"),
        (None, "truncated or damaged"),
    ],
)
def test_damaged_sources_leave_nothing(sources, tmp_path, damage, message):
    path, wordnet = sources
    whole = path.read_bytes()
    cut = whole[:-300] if damage is None else lzma.compress(damage(lzma.decompress(whole)))
    path.write_bytes(cut)
    with pytest.raises(ArchiveError if damage is None else LayoutError, match=message):
        build(path, wordnet, tmp_path / "new" / "out")
    assert left_behind(tmp_path / "new") == []


def test_another_wordnet_is_noticed(sources, tmp_path):
    for name in ("data.noun", "index.noun"):
        file = sources[1] / name
        file.write_text(file.read_text().replace("00007846", "00007847"))
    with pytest.raises(LayoutError, match=r"give WordNet 3\.0"):
        build(*sources, tmp_path / "out")
    (sources[1] / "data.noun").unlink()
    with pytest.raises(LayoutError, match=r"holds no data\.noun"):
        build(*sources, tmp_path / "out")


def test_an_existing_build_is_not_overwritten(sources, tmp_path):
    (tmp_path / "out").mkdir()
    build(*sources, tmp_path / "out")  # an empty folder may be there
    with pytest.raises(LayoutError, match="is not empty"):
        build(*sources, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(LayoutError, match="is a file"):
        build(*sources, tmp_path / "file")


def test_command_line(sources, tmp_path, monkeypatch):
    monkeypatch.setattr(Glove, "load", lambda **_: GLOVE)
    given = ["build", "mini-wiki", "--wiki3029", str(sources[0]), "--wordnet", str(sources[1])]
    args = [*given, "--out", str(tmp_path / "out")]
    got = CliRunner().invoke(app, args)
    assert got.exit_code == 0, got.output
    assert "2 tasks" in got.output and all(n in got.output for n in NAMES)
    assert "% of tokens are in GloVe's vocabulary" in got.output
    assert got.output.strip().endswith(f"fmrl.data.load_miniwiki({str(tmp_path / 'out')!r})")
    got = CliRunner().invoke(app, args)
    assert got.exit_code == 2 and "is not empty" in got.output
    got = CliRunner().invoke(app, given)  # without --out: where the loader finds it
    assert got.exit_code == 0, got.output
    assert len(load_miniwiki(name="mini-wiki-rebuilt", split="all", glove=GLOVE)) == 2
    assert "2 tasks, 4 classes" in CliRunner().invoke(app, ["verify", "mini-wiki-rebuilt"]).output


@pytest.mark.slow
def test_the_real_one(shared, tmp_path, monkeypatch):
    """All pages are read, told apart and drawn from; a tenth of the tasks is written and read."""
    sources, every = (shared("wiki3029.tsv.xz"), shared("wordnet-3.0-dict.tar.xz")), []

    def tenth(*given):
        every.extend(_tasks(*given))
        return tuple(every[::10])

    monkeypatch.setattr("fmrl.datasets.miniwiki_build._tasks", tenth)
    built = build(*sources, tmp_path / "mini-wiki-rebuilt")
    pages = [p for t in every for p in t]
    assert len(every) == 646 and len(set(pages)) == len(pages)
    assert all(p in built.classes[NAMES[k]] for t in every for k, p in enumerate(t))
    assert min(built.cuts[0][1]) >= 500 and "location" in built.cuts[0][0]
    assert sum(built.splits.values()) == len(built.tasks) == 65
    manifest = json.loads((built.path / "manifest.json").read_text())
    assert manifest["pages with a noun lemma"] == 2967 and manifest["pages in all"] == 3028
    try:
        glove = Glove.load()
    except Exception as e:
        pytest.skip(f"the rest needs GloVe: {e}")
    lines = (built.path / "miniwikinet/raw").glob("*.txt")
    texts = (line.partition("\t")[2].split() for f in lines for line in f.read_text().splitlines())
    assert glove.coverage(texts) > 0.98
    held = load_miniwiki(name="mini-wiki-rebuilt", data=tmp_path, split="all")
    start = time.perf_counter()
    again = load_miniwiki(name="mini-wiki-rebuilt", data=tmp_path, split="all")
    assert time.perf_counter() - start < 10 and np.array_equal(again.X, held.X)
    assert len(held) == 65 and held.name == "Mini-Wiki (rebuilt)"
    assert held.X.shape == (65 * 128, 50)
    shutil.rmtree(built.path)


def test_an_altered_build_is_never_used(sources, tmp_path):
    root = build(*sources, tmp_path / "mini-wiki-rebuilt", tarball=True).path
    given = {"name": "mini-wiki-rebuilt", "data": tmp_path, "split": "all", "glove": GLOVE}

    def load(**kw):
        return load_miniwiki(**given, **kw)

    verify = ["verify", "mini-wiki-rebuilt", "--data", str(tmp_path)]
    assert len(load()) == 2 and CliRunner().invoke(app, verify).exit_code == 0
    file = next((root / "miniwikinet/bal").glob("*/32/0.txt"))
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"word", b"verb", 1))
    for read in (load, lambda: load_miniwiki(root / "miniwikinet", split="all", glove=GLOVE)):
        with pytest.raises(LayoutError, match="was altered: the files in bal/"):
            read()
    assert len(load(expect=None)) == 2 and len(load(shots=1)) == 2
    got = CliRunner().invoke(app, verify)
    assert got.exit_code == 1 and "altered" in got.output
    file.unlink()
    with pytest.raises(LayoutError, match=r"has \d files in bal/\w+/32, \d were built"):
        load()
    file.write_bytes(whole)
    shutil.copy(file, file.with_name("7.txt"))
    with pytest.raises(LayoutError, match=r"has \d files"):
        load()
    file.with_name("7.txt").unlink()
    (root / "miniwikinet/raw/0.txt").write_text("0\tword\n")
    assert len(load()) == 2 and CliRunner().invoke(app, verify).exit_code == 1
    (root / "manifest.json").write_text("{")
    with pytest.raises(LayoutError, match=r"manifest\.json cannot be read"):
        load()


def test_a_verify_of_bytes_that_are_no_text(sources, tmp_path):
    root = build(*sources, tmp_path / "mini-wiki-rebuilt").path
    (root / "manifest.json").unlink()
    got = CliRunner().invoke(app, ["verify", "mini-wiki-rebuilt", "--data", str(tmp_path)])
    assert got.exit_code == 1 and "no manifest.json" in got.output
    (root / "miniwikinet").rename(tmp_path / "miniwikinet")
    next((tmp_path / "miniwikinet/bal").glob("*/1/0.txt")).write_bytes(b"0\tcaf\xe9\n")
    got = CliRunner().invoke(app, ["verify", "mini-wiki", "--data", str(tmp_path)])
    assert got.exit_code == 1 and "not UTF-8" in got.output


def test_the_seed_orders_pages_splits_and_samples(sources, tmp_path):
    builds = [build(*sources, tmp_path / str(s), seed=s) for s in range(8)]
    assert len({b.tasks for b in builds}) > 1
    lines = [(b.path / "miniwikinet/raw/0.txt").read_text().splitlines() for b in builds]
    assert len({tuple(line[0] for line in one) for one in lines}) == 8
    assert _splits(200, 0) != _splits(200, 1)
    assert Counter(_splits(200, 0)) == {"train": 160, "dev": 20, "test": 20}


def test_sentences_of_one_length_are_taken_by_characters_then_by_place():
    texts = ["a bb c", "a b c", "d e f", "a b c d", "a b cc"]
    pages = dict.fromkeys("PQRS", texts + [f"x{k}" for k in range(40)])
    files = dict(_files(0, tuple("PQRS"), pages, "train", seed=0))
    one, two, four = (
        sorted(x[2:] for x in files[f"bal/train/{m}"].decode().splitlines() if x[0] == "0")
        for m in (1, 2, 4)
    )
    assert one == ["a b c d"] and two == ["a b c d", "a bb c"]
    assert four == ["a b c", "a b c d", "a b cc", "a bb c"]


def test_a_word_on_most_pages_tells_nothing(sources):
    """'stripes' speaks for the feline until over 70 % of the pages have it; then the more
    frequent sense is taken.
    """
    net = WordNet.load(sources[1])
    titles = ["Tiger", "Bach", "Paris", "Crete", "Hammer"]
    titles += ["Justice", "Music", "Ada", "Person", "Land"]
    for count, sense in ((7, "10000006"), (8, "10000005")):
        pages = {t: ["stripes" if k < count else "nothing"] for k, t in enumerate(titles)}
        assert page_senses(net, pages)["Tiger"] == sense


def test_senses_that_tie_go_to_the_more_frequent_one(sources):
    found = page_senses(WordNet.load(sources[1]), {"Tiger": ["no hint"], "Bach": ["x"]})
    assert found["Tiger"] == "10000005"
