"""The picture of a report for the site: python scripts/report_picture.py writes
docs/img/report.png, the first screen of the report on the synthetic sensors of
scripts/example_report.py, in Chromium."""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from example_report import regression_facts

from fmrl.report import write

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from report import chromium  # noqa: E402

SIZE = {"width": 900, "height": 1120}


def main() -> None:
    """Take it."""
    path = chromium.find()
    if path is None:
        sys.exit("no Chromium: install the package chromium, or name one in FMRL_CHROMIUM")
    with tempfile.TemporaryDirectory() as home:
        page = write(regression_facts(tasks=320), Path(home) / "report.html")
        browser = chromium.Browser(path, Path(home) / "profile")
        shot = browser.page(page, **SIZE).call("Page.captureScreenshot", format="png")["data"]
        browser.close()
    (ROOT / "docs" / "img" / "report.png").write_bytes(base64.b64decode(shot))


if __name__ == "__main__":
    main()
