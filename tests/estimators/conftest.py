"""threads.py runs operations against each other, for the tests here and for the soak;
environments.py scores later tasks, for the tests here and for the benchmark.
"""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "soak")]
