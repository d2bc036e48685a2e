"""Hypothesis: the same examples every time; HYPOTHESIS_PROFILE=explore draws new ones, and more
of them.

Instances are made from seeds, and a smaller seed is no simpler instance: shrinking would only
cost time."""

import os
import sys
from pathlib import Path

from hypothesis import Phase, settings

# precise.py solves in 60 digits, for the tests here and for the soak.
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "soak"))

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
settings.register_profile(
    "fixed", deadline=None, phases=PHASES, max_examples=20, derandomize=True, database=None
)
settings.register_profile(
    "explore", deadline=None, phases=PHASES, max_examples=100, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
