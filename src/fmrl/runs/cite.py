"""References of exactly what a run used, as BibTeX."""

from __future__ import annotations

from typing import Any

from fmrl.core.algorithm import FMRL
from fmrl.core.parse import parse
from fmrl.datasets.registry import DATASETS
from fmrl.report import PAPER
from fmrl.runs.run import Run

_BOOK = """\
@article{shalevshwartz2011online,
  title   = {Online Learning and Online Convex Optimization},
  author  = {Shalev-Shwartz, Shai},
  journal = {Foundations and Trends in Machine Learning},
  volume  = {4},
  number  = {2},
  pages   = {107--194},
  year    = {2011}
}"""
_ZINKEVICH = """\
@inproceedings{zinkevich2003online,
  title     = {Online Convex Programming and Generalized Infinitesimal Gradient Ascent},
  author    = {Zinkevich, Martin},
  booktitle = {Proceedings of the 20th International Conference on Machine Learning},
  pages     = {928--936},
  year      = {2003}
}"""
_KAKADE = """\
@inproceedings{kakade2008mind,
  title     = {Mind the Duality Gap: Logarithmic Regret Algorithms for Online Optimization},
  author    = {Kakade, Sham M. and Shalev-Shwartz, Shai},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {21},
  year      = {2008}
}"""
_BARTLETT = """\
@inproceedings{bartlett2007adaptive,
  title     = {Adaptive Online Gradient Descent},
  author    = {Bartlett, Peter L. and Hazan, Elad and Rakhlin, Alexander},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {20},
  year      = {2007}
}"""
_NICHOL = """\
@article{nichol2018first,
  title   = {On First-Order Meta-Learning Algorithms},
  author  = {Nichol, Alex and Achiam, Joshua and Schulman, John},
  journal = {arXiv preprint arXiv:1803.02999},
  year    = {2018}
}"""
_SKLEARN = """\
@article{pedregosa2011scikit,
  title   = {Scikit-learn: Machine Learning in {P}ython},
  author  = {Pedregosa, Fabian and Varoquaux, Ga{\\"e}l and Gramfort, Alexandre and Michel, Vincent and Thirion, Bertrand and
             Grisel, Olivier and Blondel, Mathieu and Prettenhofer, Peter and Weiss, Ron and Dubourg, Vincent and Vanderplas, Jake and
             Passos, Alexandre and Cournapeau, David and Brucher, Matthieu and Perrot, Matthieu and Duchesnay, {\\'E}douard},
  journal = {Journal of Machine Learning Research},
  volume  = {12},
  pages   = {2825--2830},
  year    = {2011}
}"""

# By the name of a value: what it is called and who to cite for it, beside the paper.
VALUES = {
    "OMD": ("lazy mirror descent", _BOOK),
    "FTRL": ("follow the regularised leader", _BOOK),
    "OGD": ("online gradient descent", _ZINKEVICH),
    "FollowLeader": ("follow the leader on strongly convex losses", _KAKADE),
    "AdaptiveOGD": ("adaptive gradient descent", _BARTLETT),
    "Interpolate": ("Reptile's outer step", _NICHOL),
}


def references(algo: FMRL) -> list[tuple[str, str]]:
    """What each part of a composition is, and its BibTeX entry; the paper first, each entry once.

    >>> [why for why, _ in references(FMRL())]
    ['FMRL', 'lazy mirror descent', 'follow the leader on strongly convex losses']
    """
    found = [("FMRL", PAPER)]
    parts = (algo.within, algo.update, algo.meta, algo.similarity)
    for why, entry in (VALUES[type(p).__name__] for p in parts if type(p).__name__ in VALUES):
        if entry not in [e for _, e in found]:
            found.append((why, entry))
    return found


def cite(run: Run) -> list[dict[str, Any]]:
    """The references of a run: its composition, the data sets its files come from, and the
    baselines it was compared with.
    """
    found = [{"for": why, "bibtex": entry} for why, entry in references(parse(run.record["composition"]))]
    if run.record["heldout"]["methods"]:
        found.append({"for": "the baselines on held-out tasks", "bibtex": _SKLEARN})
    hashes = {d["sha256"] for d in run.record["data"]}
    for name, d in DATASETS.items():
        if hashes & {item.sha256 for variant in d.variants for item in variant if item.sha256}:
            entry = f"@misc{{{name},\n  title = {{{d.title}}},\n  url   = {{{d.origin}}},\n  note  = {{{d.licence}}}\n}}"
            found.append({"for": f"the data set {name}", "bibtex": entry})
    return found
