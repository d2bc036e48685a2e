"""The site as mkdocs builds it, asked what the report and the playground are asked: contrast, names
of controls, reach by keys, a layout that stays, no request to anyone.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROBES = (ROOT / "tests" / "playground" / "probes.js").read_text(encoding="utf-8")
PAGES = ("index.html", "tutorials/first-table.html", "api/estimators.html")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site. $FMRL_MKDOCS names an mkdocs of another environment."""
    beside = shutil.which("mkdocs", path=str(Path(sys.executable).parent))
    mkdocs = os.environ.get("FMRL_MKDOCS") or beside
    if mkdocs is None:
        pytest.skip("mkdocs is not installed: make docs, or pip install 'fmrl[docs]'")
    out = tmp_path_factory.mktemp("site")
    subprocess.run([mkdocs, "build", "--quiet", "--strict", "-d", str(out)], cwd=ROOT, check=True)
    return out


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_can_be_read_and_reached(browser, site, name, dark):
    page = browser.page(site / name, width=1280, dark=dark)
    page.js(PROBES)
    page.js("probe.shifts()")
    assert page.js("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
    faint = {(round(ratio, 2), text) for ratio, text in page.js("probe.colours()") if ratio < 4.5}
    assert faint == set() and page.js("probe.nameless()") == []
    assert page.unreached() == []
    page.js("scrollTo(0, document.body.scrollHeight)")
    page.frames()
    assert page.js("window.shift") < 0.02 and page.complaints == []
    assert [u for u in page.requests if not u.startswith(("file:", "data:", "blob:"))] == []
    # Pictures have words for those who do not see them, and are no white boxes in the dark.
    pictures = "[...document.querySelectorAll('.md-content img')]"
    assert page.js(f"{pictures}.every(e => e.alt.length > 10)") is True
    cards = page.js(f"{pictures}.map(e => getComputedStyle(e).filter)")
    assert set(cards) <= {"brightness(0.85)" if dark else "none"}
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_off_on_a_phone(browser, site, name):
    page = browser.page(site / name, width=390, height=844, touch=True)
    assert page.js("document.documentElement.scrollWidth") <= 390 and page.complaints == []
    page.close()
