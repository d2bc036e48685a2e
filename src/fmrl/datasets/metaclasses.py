"""Splitting pages into four meta-classes by WordNet's hypernyms: person, place, thing, idea.

The criterion. A cut is three synsets; a page belongs to the smallest of them above its own synset,
and to the rest when none is. Of all cuts, those with the largest smallest class are best, because
the smallest class is the number of tasks with disjoint pages. `best_cuts` searches them all. On
Wiki3029 the best are `location`, one synset around `person`, and `physical_entity` with
`abstraction` left over; the limiting class is always `location`. It is then widened by the other
synsets of geography (islands, mountains, rivers and seas, which WordNet files under objects), which
raises the number of tasks by a sixth without mixing meanings. That is CUT."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fmrl.datasets.wordnet import WordNet
from fmrl.errors import LayoutError

# (meta-class, first word and id in WordNet 3.0 of the synsets that make it); tested in this order,
# the last takes the rest.
CUT: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("person", (("person", "00007846"),)),
    (
        "place",
        (
            ("location", "00027167"),
            ("land", "09334396"),
            ("geological_formation", "09287968"),
            ("body_of_water", "09225146"),
        ),
    ),
    ("thing", (("physical_entity", "00001930"),)),
    ("idea", (("entity", "00001740"),)),
)
NAMES = tuple(name for name, _ in CUT)


@dataclass(frozen=True)
class Cut:
    """Three synsets, in the order they are tested, and the sizes of the four classes they make (the
    rest last).
    """

    synsets: tuple[str, str, str]
    sizes: tuple[int, int, int, int]


def best_cuts(
    wordnet: WordNet, senses: Mapping[str, str], keep: int = 6, least: int = 300
) -> list[Cut]:
    """The ``keep`` cuts with the largest smallest class (then the smallest largest), among synsets
    above ``least`` pages or more.
    """
    above = [wordnet.ancestors(s) for s in senses.values()]
    count = Counter(s for a in above for s in a)
    candidates = sorted(
        (s for s, c in count.items() if least <= c <= len(above) - least),
        key=lambda s: (count[s], s),
    )
    inside = {s: np.array([s in a for a in above]) for s in candidates}
    cuts = []
    for triple in combinations(candidates, 3):
        rest, sizes = np.ones(len(above), dtype=bool), []
        for s in triple:
            sizes.append(int((inside[s] & rest).sum()))
            rest &= ~inside[s]
        cuts.append(Cut(triple, (*sizes, int(rest.sum()))))
    return sorted(cuts, key=lambda c: (-min(c.sizes), max(c.sizes), c.synsets))[:keep]


def classify(wordnet: WordNet, senses: Mapping[str, str]) -> dict[str, list[str]]:
    """The pages of each meta-class, in the order given; every page lands in exactly one."""
    for _, synsets in CUT:
        for word, s in synsets:
            if s not in wordnet.synsets or word not in wordnet.synsets[s].words:
                raise LayoutError(
                    f"synset {s} is not {word!r} here",
                    fix="give WordNet 3.0: other versions number synsets otherwise",
                )
    classes: dict[str, list[str]] = {name: [] for name in NAMES}
    for title, sense in senses.items():
        above = wordnet.ancestors(sense)
        classes[next(name for name, synsets in CUT if any(s in above for _, s in synsets))].append(
            title
        )
    return classes
