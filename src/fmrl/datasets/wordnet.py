"""WordNet's noun hierarchy: lemmas, synsets, hypernyms, and which sense of a title a page is about."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fmrl.datasets.archive import entries
from fmrl.errors import LayoutError

_WORD = re.compile(r"[a-z]{3,}")


@dataclass(frozen=True)
class Synset:
    """One meaning: its words, its direct hypernyms (instances included), its definition without the
    examples.
    """

    words: tuple[str, ...]
    hypernyms: tuple[str, ...]
    definition: str


@dataclass(frozen=True, repr=False)
class WordNet:
    """Noun synsets by their id (an eight-digit offset) and the senses of each lemma, most frequent
    first.
    """

    synsets: Mapping[str, Synset]
    senses: Mapping[str, tuple[str, ...]]

    @classmethod
    def load(cls, path: str | Path) -> "WordNet":
        """Read ``data.noun`` and ``index.noun`` from a folder or from an archive that holds them."""
        path, found = Path(path), {}
        wanted = ("data.noun", "index.noun")
        for name, content in entries(path, "*.noun"):
            base = name.rsplit("/", 1)[-1]
            if base in wanted:
                found[base] = content
        if len(found) < 2:
            raise LayoutError(
                f"{path} holds no data.noun and index.noun",
                fix="give WordNet 3.0's dict folder or archive",
            )
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


def lemma_of(title: str) -> str:
    """The lemma a page title stands for: lower case, without a bracketed suffix.

    >>> lemma_of("Mercury_(planet)")
    'mercury'
    """
    return re.sub(r"_\(.*\)$", "", title).lower()


def page_senses(wordnet: WordNet, pages: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The noun synset each page is about; pages whose title is no noun lemma are left out.

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
        return total / math.sqrt(1 + len(words))

    def best(title: str, senses: tuple[str, ...]) -> str:
        # Rounded, so that the last bit of a platform's log cannot decide.
        return (
            senses[0]
            if len(senses) == 1
            else max(senses, key=lambda s: (round(score(title, s), 9), -senses.index(s)))
        )

    return {t: best(t, senses) for t, senses in kept.items()}


def _lines(content: bytes) -> Iterable[str]:
    # The files open with a licence, whose lines start with two spaces.
    return (
        line for line in content.decode("utf-8").splitlines() if line and not line.startswith("  ")
    )


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
