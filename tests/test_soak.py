"""A share of `make soak`: about half a minute, with seeds that move with the commit.

A failure prints the line that repeats it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "soak"))
from parts import PARTS  # noqa: E402

SHARE = {"adversary": 250, "solver": 8, "files": 60, "kills": 2, "disk": 8, "threads": 5}


def first_seed() -> int:
    """Another one for every commit; 0 outside a checkout."""
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(said.stdout[:8], 16) % 10**6 if said.returncode == 0 else 0


@pytest.mark.parametrize("part", SHARE)
def test_a_share_of_the_soak(part):
    first = first_seed()
    if part == "kills":  # every tenth kills a training of several windows, which takes long
        first = 10 * (first // 10) + 1
    for seed in range(first, first + SHARE[part]):
        if part == "files":  # without its limit on memory, which would be this process's
            import forge

            why = forge.check(seed)
        else:
            why = PARTS[part].check(seed)
        assert why is None, f"{why}\n    python benchmarks/soak again {part} {seed}"


@pytest.mark.parametrize(("part", "seed"), [("solver", 8238), ("solver", 53966), ("files", 5557)])
def test_what_the_whole_soak_found(part, seed):
    """Gaps of 0 that rounding had made, and a dtype in a file that NumPy could not even parse."""
    if part == "files":
        import forge

        forge.prey()
        assert forge.check(seed) is None
    else:
        assert PARTS[part].check(seed) is None


def test_every_part_of_the_soak_is_counted():
    instances = {name: part.total * part.each for name, part in PARTS.items()}
    assert instances["adversary"] >= 100_000 and instances["solver"] >= 10_000
    assert instances["kills"] >= 1_000 and instances["files"] >= 10_000
    assert instances["ray"] >= 200


def test_the_page_says_what_the_record_of_millions_says():
    record = json.loads((ROOT / "results" / "soak" / "millions.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert f"{record['command']} " in page and len(record["steps"]) == 4
    for step in record["steps"]:
        cells = f"{step['processor']:.0f} s | {step['seconds']:.0f} s | {step['gib']:.1f} GiB |"
        assert step["good"] and cells in page
