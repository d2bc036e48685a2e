"""threads.py runs operations against each other, for the tests here and for the soak."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "soak"))
