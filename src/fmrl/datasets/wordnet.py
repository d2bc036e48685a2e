"""WordNet's noun hierarchy, which sense of its title a page is about, and the four meta-classes:
person, place, thing, idea.

The criterion for the meta-classes. A cut is three synsets; a page belongs to the smallest of them
above its own synset, and to the rest when none is. Of all cuts, those with the largest smallest
class are best, because the smallest class is the number of tasks with disjoint pages. `best_cuts`
searches them all. On Wiki3029 the best are `location`, one synset around `person`, and
`physical_entity` with `abstraction` left over; the limiting class is always `location`. It is then
widened by the other synsets of geography (islands, mountains, rivers and seas, which WordNet files
under objects), which raises the number of tasks by a sixth without mixing meanings. That is CUT."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np

from fmrl.datasets.archive import entries
from fmrl.errors import LayoutError

_WORD = re.compile(r"[a-z]{3,}")
_PLACES = {"location": "00027167", "land": "09334396", "geological_formation": "09287968"}
# The synsets of each meta-class: first word and id in WordNet 3.0. Tested in this order; the last
# takes the rest.
CUT: Mapping[str, Mapping[str, str]] = {
    "person": {"person": "00007846"},
    "place": _PLACES | {"body_of_water": "09225146"},
    "thing": {"physical_entity": "00001930"},
    "idea": {"entity": "00001740"},
}
NAMES = tuple(CUT)


@dataclass(frozen=True)
class Synset:
    """One meaning: its words, its direct hypernyms, its definition without the examples."""

    words: tuple[str, ...]
    hypernyms: tuple[str, ...]
    definition: str


@dataclass(frozen=True, repr=False)
class WordNet:
    """Noun synsets by id (an eight-digit offset), and the senses of lemmas, frequent first."""

    synsets: Mapping[str, Synset]
    senses: Mapping[str, tuple[str, ...]]

    @classmethod
    def load(cls, path: str | Path) -> "WordNet":
        """Read ``data.noun`` and ``index.noun`` from a folder or an archive that holds them."""
        files = ((n.rsplit("/", 1)[-1], body) for n, body in entries(Path(path), "*.noun"))
        found = {n: body for n, body in files if n in ("data.noun", "index.noun")}
        if len(found) < 2:
            fix = "give WordNet 3.0's dict folder or archive"
            raise LayoutError(f"{path} holds no data.noun and index.noun", fix=fix)
        return cls(_synsets(found["data.noun"]), _senses(found["index.noun"]))

    def ancestors(self, synset: str) -> frozenset[str]:
        """The synset and everything above it: the transitive closure of hypernymy."""
        if synset not in self._closures:
            above = (self.ancestors(h) for h in self.synsets[synset].hypernyms)
            self._closures[synset] = frozenset({synset}).union(*above)
        return self._closures[synset]

    @cached_property
    def _closures(self) -> dict[str, frozenset[str]]:
        return {}

    def signature(self, synset: str) -> frozenset[str]:
        """The words that tell a sense: its definition, its synonyms and its hypernyms' names."""
        s = self.synsets[synset]
        names = [*s.words, *(w for h in s.hypernyms for w in self.synsets[h].words)]
        return frozenset(_WORD.findall(" ".join([*names, s.definition]).lower()))


def count_synsets(name: str, path: Path) -> dict[str, int]:
    """Counts of a copy of WordNet."""
    return {"noun synsets": len(WordNet.load(path).synsets)}


def lemma_of(title: str) -> str:
    """The lemma a page title stands for: lower case, without a bracketed suffix.

    >>> lemma_of("Mercury_(planet)")
    'mercury'
    """
    return re.sub(r"_\(.*\)$", "", title).lower()


def page_senses(wordnet: WordNet, pages: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The noun synset each page is about; pages whose title is not a noun lemma are left out.

    A title with several senses takes the one whose signature S the page's own text supports best (a
    weighted Lesk rule): score = sum over w in S of log(N / pages with w) * log(1 + count of w in
    the page), over sqrt(1 + |S|); words of the title itself and words on over 70 % of the pages do
    not count; ties go to the more frequent sense."""
    kept = {t: wordnet.senses[lemma_of(t)] for t in pages if lemma_of(t) in wordnet.senses}
    counts = {t: Counter(_WORD.findall("\n".join(pages[t]).lower())) for t in kept}
    spread = Counter(w for c in counts.values() for w in c)
    n = max(len(kept), 1)

    def score(title: str, sense: str) -> float:
        own, c = set(_WORD.findall(lemma_of(title))), counts[title]
        words = sorted(w for w in wordnet.signature(sense) - own if spread[w] <= 0.7 * n)
        total = math.fsum(math.log(n / spread[w]) * math.log1p(c[w]) for w in words if c[w])
        # Rounded, so that the last bit of a platform's log cannot decide.
        return round(total / math.sqrt(1 + len(words)), 9)

    def best(title: str, senses: tuple[str, ...]) -> str:
        if len(senses) == 1:
            return senses[0]
        return max(senses, key=lambda s: (score(title, s), -senses.index(s)))

    return {t: best(t, senses) for t, senses in kept.items()}


def best_cuts(
    wordnet: WordNet, senses: Mapping[str, str], keep: int = 6, least: int = 300
) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """The ``keep`` cuts with the largest smallest class (then the smallest largest): three synsets,
    each above ``least`` pages or more, and the sizes of the four classes, the rest last."""
    above = [wordnet.ancestors(s) for s in senses.values()]
    count = Counter(s for a in above for s in a)
    common = (s for s, c in count.items() if least <= c <= len(above) - least)
    candidates = sorted(common, key=lambda s: (count[s], s))
    inside = {s: np.array([s in a for a in above]) for s in candidates}
    cuts = []
    for triple in combinations(candidates, 3):
        rest, sizes = np.ones(len(above), dtype=bool), []
        for s in triple:
            sizes.append(int((inside[s] & rest).sum()))
            rest &= ~inside[s]
        cuts.append((triple, (*sizes, int(rest.sum()))))
    return sorted(cuts, key=lambda c: (-min(c[1]), max(c[1]), c[0]))[:keep]


def classify(wordnet: WordNet, senses: Mapping[str, str]) -> dict[str, list[str]]:
    """The pages of each meta-class, in the order given; every page lands in exactly one."""
    for word, s in (pair for synsets in CUT.values() for pair in synsets.items()):
        if s not in wordnet.synsets or word not in wordnet.synsets[s].words:
            fix = "give WordNet 3.0: other versions number synsets otherwise"
            raise LayoutError(f"synset {s} is not {word!r} here", fix=fix)
    classes: dict[str, list[str]] = {name: [] for name in NAMES}
    for title, sense in senses.items():
        above = wordnet.ancestors(sense)
        classes[next(n for n in NAMES if above & set(CUT[n].values()))].append(title)
    return classes


def _lines(content: bytes) -> Iterable[str]:
    # The files open with a licence, whose lines start with two spaces.
    lines = content.decode("utf-8").splitlines()
    return (line for line in lines if line and not line.startswith("  "))


def _synsets(content: bytes) -> dict[str, Synset]:
    out = {}
    for line in _lines(content):
        head, _, gloss = line.partition(" | ")
        f = head.split(" ")
        words = 4 + 2 * int(f[3], 16)
        pointers = [f[words + 1 + 4 * i : words + 5 + 4 * i] for i in range(int(f[words]))]
        above = tuple(p[1] for p in pointers if p[0] in ("@", "@i"))
        out[f[0]] = Synset(tuple(f[4:words:2]), above, gloss.split('; "')[0].strip())
    return out


def _senses(content: bytes) -> dict[str, tuple[str, ...]]:
    rows = (line.split() for line in _lines(content))
    return {f[0]: tuple(f[-int(f[2]) :]) for f in rows}
