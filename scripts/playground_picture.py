"""Pictures of the playground for the site, and what the page costs, measured in Chromium.

    python scripts/playground_picture.py

writes docs/img/playground-draw.png, docs/img/playground-watch.png and
results/playground/browser.json: the weight of the page, the time between frames (median and 95th
percentile) while both networks adapt to 15 drawings, and the seconds that takes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from fmrl import playground
from fmrl.records import record, write_json

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from report import chromium  # noqa: E402

IMAGES, RECORD = ROOT / "docs" / "img", ROOT / "results" / "playground" / "browser.json"
PROBES = (ROOT / "tests" / "playground" / "probes.js").read_text(encoding="utf-8")
ROUNDS = 5


def main() -> None:
    """Take the pictures and measure."""
    path = chromium.find()
    if path is None:
        sys.exit("no Chromium: install the package chromium, or name one in FMRL_CHROMIUM")
    with tempfile.TemporaryDirectory() as home:
        page = playground.write(Path(home) / "playground.html")
        browser = chromium.Browser(path, Path(home) / "profile")
        with record("playground", drawings=15, steps=30, rounds=ROUNDS) as entry:
            entry["browser"] = browser.call("Browser.getVersion")["product"]
            entry["page bytes"] = page.stat().st_size
            measured = _measured(browser, page)
            entry |= measured
        _pictures(browser, page)
        browser.close()
    print(write_json(RECORD, entry))
    for name in ("browser", "page bytes", *measured):
        print(f"{name}: {entry[name]}")


def _measured(browser: chromium.Browser, page: Path) -> dict:
    """Of the frames of all rounds; the seconds are the median of the rounds."""
    gaps, seconds = [], []
    for _ in range(ROUNDS):
        tab = browser.page(page, width=1280)
        tab.js(PROBES)
        tab.js("probe.choose('ways', 5), probe.choose('shots', 3)")
        times = np.array(tab.js("probe.frames(probe.done)"))
        gaps += np.diff(times).tolist()
        seconds.append(float(times[-1] - times[0]) / 1000)
        tab.close()
    middle, late = np.percentile(gaps, [50, 95])
    found = {"frames a second": 1000 / middle, "frame, median ms": middle}
    found |= {"frame, 95th percentile ms": late, "seconds to adapt": np.median(seconds)}
    found |= {"load of the machine, a core": os.getloadavg()[0] / (os.cpu_count() or 1)}
    return {name: round(float(value), 2) for name, value in found.items()} | {"frames": len(gaps)}


def _pictures(browser: chromium.Browser, page: Path) -> None:
    tab = browser.page(page, width=1100)
    tab.js(PROBES)
    tab.js("probe.until(probe.done, 60)")
    tab.js("playground.watch.reset(60), playground.watch.touch({choose: 52})")
    tab.js("document.querySelectorAll('details').forEach(d => d.remove())")
    tab.js("document.querySelectorAll('section').forEach(s => s.style.padding = '16px')")
    tab.frames()
    for part in ("draw", "watch"):
        tab.screenshot(IMAGES / f"playground-{part}.png", f"#{part}")
    tab.close()


if __name__ == "__main__":
    main()
