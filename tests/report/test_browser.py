"""The page in headless Chromium: it renders without a complaint or a request, answers mouse,
finger and keys, and fits a phone.
"""

import json
from pathlib import Path

import pytest

from fmrl import report

PROBES = Path(__file__).parents[1].joinpath("playground", "probes.js").read_text(encoding="utf-8")
THEORY = "document.querySelector('#theory > details')"
CHARTS = ("heldout", "tar", "guess", "similarity", "environment")


@pytest.fixture
def open_page(browser, tmp_path):
    pages = []

    def opened(facts, unfold=True, **how):
        path = report.write(facts, tmp_path / f"report-{len(pages)}.html")
        pages.append(browser.page(path, **how))
        if unfold:
            pages[-1].js(f"{THEORY}.open = true")
            pages[-1].frames()
        return pages[-1]

    yield opened
    for page in pages:
        page.close()


def box(page, chart):
    """The chart's svg, scrolled into view: x, y, width, height."""
    node = f"document.querySelector('[data-chart={chart}] .plot > svg')"
    page.js(f"{node}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    return page.js(f"(r => [r.x, r.y, r.width, r.height])({node}.getBoundingClientRect())")


def tip(page, chart):
    """Text of the tooltip, or None."""
    node = f"document.querySelector('[data-chart={chart}] .tip')"
    return page.js(f"(t => t.hidden ? null : t.innerText)({node})")


def count(page, selector):
    return page.js(f"document.querySelectorAll({json.dumps(selector)}).length")


def ticks(page, chart):
    texts = f"document.querySelectorAll('[data-chart={chart}] .plot > svg > text')"
    return page.js(f"[...{texts}].map(t => t.textContent)")


def hover(page, chart, x, y):
    left, top, width, height = box(page, chart)
    page.mouse("mouseMoved", left + x * width, top + y * height)
    page.frames()


def drag(page, chart, start, stop):
    left, top, width, height = box(page, chart)
    at = lambda p: (left + p[0] * width, top + p[1] * height)  # noqa: E731
    page.mouse("mouseMoved", *at(start))
    page.mouse("mousePressed", *at(start), 1)
    page.mouse("mouseMoved", *at(stop), 1)
    brushes = count(page, f"[data-chart={chart}] .brush")
    page.mouse("mouseReleased", *at(stop), 1)
    page.frames()
    return brushes


def test_renders_silently_and_alone(open_page, real):
    page = open_page(real)
    assert page.complaints == []
    assert len(page.requests) == 1 and page.requests[0].startswith("file://")
    for chart in CHARTS:
        marks = f"[data-chart={chart}] .plot > svg :is(path.line, path.marks)"
        assert count(page, marks) >= 1, chart
        _, _, width, height = box(page, chart)
        assert width > 400 and height > 200
    assert count(page, "[data-chart=similarity] .marks") > 300  # a dot per task
    strange = "t => /NaN|undefined|Infinity/.test(t.textContent)"
    assert page.js(f"[...document.querySelectorAll('svg text')].some({strange})") is False


def test_content_policy_forbids_requests(open_page, real):
    """The page cannot reach out even when asked to: not by image, not by fetch, not by a new
    script.
    """
    page = open_page(real)
    sent = "then(() => 'sent', () => 'refused')"
    assert page.js(f"fetch('https://example.invalid/x').{sent}") == "refused"
    ends = "onerror: () => r('refused'), onload: () => r('sent')"
    image = f"Object.assign(new Image(), {{{ends}, src: 'https://example.invalid/i.png'}})"
    assert page.js(f"new Promise(r => {{ {image} }})") == "refused"
    script = "Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'})"
    page.js(f"document.body.append({script})")
    assert page.js("window.hacked") is None
    assert sum("Content Security Policy" in text for text in page.complaints) >= 3


def test_hover_gives_the_exact_values(open_page, real):
    page = open_page(real)
    hover(page, "heldout", 0.99, 0.5)
    lines = tip(page, "heldout").splitlines()
    assert lines[0] == "shots 32"
    method = real["heldout"]["methods"][1]
    mean, low, high = (f"{method[end][-1]:.4g}" for end in ("mean", "low", "high"))
    assert f"per-task: {mean} ({low} to {high})" in lines
    hover(page, "tar", 0.99, 0.5)
    found = tip(page, "tar")
    assert found.startswith("task 320 · sensor 319")
    assert f"measured TAR: {real['curves']['tar'][-1]:.6g}"[:22] in found
    page.mouse("mouseMoved", 2, 2)
    page.frames()
    assert tip(page, "tar") is None


def test_hover_names_the_task_on_the_map(open_page, real):
    page = open_page(real)
    far = real["similarity"]["points"][0]
    node = "document.querySelectorAll('[data-chart=similarity] path.marks')"
    paths = f"[...{node}].map(p => p.getAttribute('d')).find(d => d.includes('m0,'))"  # the crosses
    x, y = map(float, page.js(paths).split("l")[0][1:].split(","))
    left, top, width, _ = box(page, "similarity")
    plot = "document.querySelector('[data-chart=similarity] .plot > svg')"
    scale = width / page.js(f"{plot}.viewBox.baseVal.width")
    page.mouse("mouseMoved", left + (x + 4.5) * scale, top + (y + 4.5) * scale)
    page.frames()
    found, said = tip(page, "similarity"), f"distance {far['distance']:.3g}"
    assert found.splitlines()[0] == far["name"] and said.rstrip("0").rstrip(".") in found


@pytest.mark.parametrize("chart", CHARTS)
def test_drag_zooms_and_double_click_resets(open_page, real, chart):
    page = open_page(real)
    before = ticks(page, chart)
    reset = f"document.querySelector('[data-chart={chart}] .tools button:last-child')"
    assert page.js(f"{reset}.disabled") is True
    assert drag(page, chart, (0.4, 0.3), (0.7, 0.6)) == 1
    zoomed = ticks(page, chart)
    assert zoomed != before and page.js(f"{reset}.disabled") is False
    left, top, width, height = box(page, chart)
    for clicks in (1, 2):
        page.mouse("mousePressed", left + width / 2, top + height / 2, clicks)
        page.mouse("mouseReleased", left + width / 2, top + height / 2, clicks)
    page.frames()
    assert ticks(page, chart) == before
    drag(page, chart, (0.4, 0.3), (0.7, 0.6))
    assert ticks(page, chart) == zoomed
    page.js(f"{reset}.click()")
    assert ticks(page, chart) == before and page.complaints == []


def test_legend_and_log_switches(open_page, real):
    page = open_page(real)
    lines = "document.querySelectorAll('[data-chart=tar] path.line').length"
    legend = "document.querySelectorAll('[data-chart=tar] .legend button')"
    assert page.js(lines) == 2
    before = ticks(page, "tar")
    page.js(f"{legend}[1].click()")
    assert page.js(lines) == 1 and page.js(f"{legend}[1].getAttribute('aria-pressed')") == "false"
    page.js(f"{legend}[1].click()")
    assert page.js(lines) == 2 and ticks(page, "tar") == before
    for i in (0, 1):
        page.js(f"document.querySelectorAll('[data-chart=tar] .tools button')[{i}].click()")
    linear = ticks(page, "tar")
    assert linear != before and "0" in linear
    page.js(f"[...{legend}].forEach(b => b.click())")  # nothing left to draw is no error
    assert page.js(lines) == 0 and page.complaints == []


def test_keys_reach_everything(open_page, real):
    page = open_page(real)
    reached = "document.querySelectorAll('[data-chart] button, .plot > svg, a, summary')"
    assert page.js(f"[...{reached}].every(e => e.tabIndex === 0)") is True
    page.js("document.querySelector('[data-chart=heldout] .plot > svg').focus()")
    page.press("ArrowRight")
    assert tip(page, "heldout").startswith("shots 1\n")
    page.press("ArrowRight")
    assert tip(page, "heldout").startswith("shots 2\n")
    page.press("End")
    assert tip(page, "heldout").startswith("shots 32\n")
    before = ticks(page, "heldout")
    page.press("+")
    assert ticks(page, "heldout") != before
    page.press("Escape")
    assert ticks(page, "heldout") == before and tip(page, "heldout") is None
    page.js("document.querySelector('[data-chart=similarity] .plot > svg').focus()")
    page.press("ArrowDown")
    page.press("ArrowRight")
    assert "sensor" in tip(page, "similarity") and page.complaints == []


def luminance(page, node="document.body", part="backgroundColor"):
    numbers = f"getComputedStyle({node}).{part}.match(/[0-9.]+/g)"
    red, green, blue = page.js(f"{numbers}.slice(0, 3).map(Number)")
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_light_and_dark(open_page, real):
    page = open_page(real)
    assert luminance(page) > 0.9 and luminance(page, part="color") < 0.2
    page.scheme("dark")
    page.frames()
    assert luminance(page) < 0.15 and luminance(page, part="color") > 0.8
    button = "document.getElementById('theme')"
    page.js(f"{button}.click()")
    assert page.js(f"{button}.textContent") == "Theme: light" and luminance(page) > 0.9
    page.scheme("light")
    page.js(f"{button}.click()")
    assert page.js(f"{button}.textContent") == "Theme: dark" and luminance(page) < 0.15
    page.js(f"{button}.click()")
    assert page.js(f"{button}.textContent") == "Theme: auto" and luminance(page) > 0.9


@pytest.mark.parametrize("width", [320, 360])
def test_phone(open_page, real, hostile, width):
    for facts in (real, hostile):
        page = open_page(facts, width=width, height=740, touch=True)
        assert page.js("document.documentElement.scrollWidth") <= width
        wide = "e => e.getBoundingClientRect().right > innerWidth + 0.5"
        parts = "[...document.querySelectorAll('section > *')]"
        assert page.js(f"{parts}.filter({wide}).length") == 0
    page = open_page(real, width=width, height=740, touch=True)
    left, top, w, h = box(page, "tar")
    assert w > 280
    middle = {"x": left + w / 2, "y": top + h / 2}
    for kind, points in (("touchStart", [middle]), ("touchEnd", [])):
        page.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    page.frames()
    assert tip(page, "tar").startswith("task ")
    shown = "document.querySelector('[data-chart=tar] .tip').getBoundingClientRect()"
    inside = f"(r => r.left >= 0 && r.right <= innerWidth)({shown})"
    assert page.js(inside) is True and page.complaints == []


def test_hostile_facts_do_nothing(open_page, hostile):
    page = open_page(hostile)
    assert page.js("window.hacked") is None and page.complaints == [] and len(page.requests) == 1
    assert count(page, "img, iframe, object, script:not([type]) ~ script") == 0
    for chart in CHARTS:
        box(page, chart)
        page.js(f"document.querySelector('[data-chart={chart}] .plot > svg').focus()")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "+", "-", "Escape"):
            page.press(key)
        buttons = f"[data-chart={chart}] .controls button"
        for i in range(count(page, buttons)):
            page.js(f"document.querySelectorAll('{buttons}')[{i}].click()")
        text = json.dumps(ticks(page, chart))
        assert "NaN" not in text and "Infinity" not in text and "undefined" not in text
    assert page.js("window.hacked") is None and page.complaints == []


def test_very_negative_scores_are_cut_off_openly(open_page, hostile):
    page = open_page(hostile)
    note = "document.querySelector('[data-chart=heldout] .hint').textContent"
    assert "below −1 are cut off" in page.js(note)
    buttons = "[...document.querySelectorAll('[data-chart=heldout] .tools button')]"
    whole = f"{buttons}.find(b => b.textContent === 'whole range')"
    before = ticks(page, "heldout")
    page.js(f"{whole}.click()")
    assert ticks(page, "heldout") != before and "cut off" not in page.js(note)


@pytest.mark.parametrize(
    "facts",
    [
        {"title": "bare"},
        {"title": "none", "curves": {"task": [], "tar": [], "guess": []}},
        {
            "title": "one",
            "curves": {"task": [1], "tar": [0.0], "guess": [0.5]},
            "similarity": report.similarity_map([[1.0, 2.0]]),
        },
    ],
    ids=["bare", "none", "one"],
)
def test_small_facts(open_page, facts):
    page = open_page(facts)
    assert page.complaints == []
    every = "[...document.querySelectorAll('svg *')]"
    assert page.js(f"{every}.every(e => !/NaN/.test(e.outerHTML))") is True


def test_large_run(open_page, large):
    page = open_page(large)
    hover(page, "guess", 0.9, 0.5)
    assert tip(page, "guess").startswith("task ") and page.complaints == []
    assert count(page, "*") < 12_000


def test_the_theory_is_folded_and_a_link_unfolds_it(open_page, real):
    page = open_page(real, unfold=False)
    seen = "document.querySelector('[data-chart=tar] .plot').checkVisibility()"
    assert page.js(f"{THEORY}.open") is False and page.js(seen) is False
    page.js("document.querySelector('nav a[href=\"#tar\"]').click()")
    page.frames()
    assert page.js(f"{THEORY}.open") is True and page.js(seen) is True
    assert count(page, "[data-chart=tar] path.line") == 2


@pytest.mark.parametrize("kind", ["real", "classes"])
def test_no_column_is_cut_on_a_phone(open_page, request, kind):
    page = open_page(request.getfixturevalue(kind), width=390, height=844, touch=True)
    page.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.frames()
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert page.js(f"{cut}.map(e => e.innerText.slice(0, 60))") == []
    cards = "[...document.querySelectorAll('#heldout .stack td')].map(e => e.dataset.label)"
    assert {"shots", "tasks", "FMRL", "gain over pooled"} <= set(page.js(cards))


@pytest.mark.parametrize("dark", [False, True])
def test_can_be_read_and_reached(open_page, real, dark):
    """Contrast, names of controls, no layout that shifts, weight: what Lighthouse would ask."""
    page = open_page(real, unfold=False, dark=dark)
    page.js(PROBES)
    page.js("probe.shifts()")
    page.js(f"{THEORY}.open = true")
    page.frames()
    faint = [(ratio, text) for ratio, text in page.js("probe.colours()") if ratio < 4.5]
    assert faint == [] and page.js("probe.nameless()") == []
    assert page.js("window.shift") < 0.05
    assert len(report.render(real).encode()) < 1_000_000


def test_prints_whole(open_page, real):
    page = open_page(real, unfold=False)
    page.js("dispatchEvent(new Event('beforeprint'))")
    assert count(page, "details:not([open])") == 0
    page.js("dispatchEvent(new Event('afterprint'))")
    assert count(page, "details[open]") == 0
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    page.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert luminance(page) > 0.999
    hidden = "e => getComputedStyle(e).display === 'none'"
    assert page.js(f"[...document.querySelectorAll('.tools, nav')].every({hidden})") is True


def test_log_axis_leaves_out_what_has_no_logarithm(open_page):
    curves = {"task": [1, 2, 3, 4, 5], "tar": [-1.0, 0.0, 2.0, None, 3.0]}
    page = open_page({"title": "t", "curves": curves})
    page.js("document.querySelectorAll('[data-chart=tar] .tools button')[1].click()")
    hint = page.js("document.querySelector('[data-chart=tar] .hint').textContent")
    assert "2 values of 0 or less" in hint
    path = page.js("document.querySelector('[data-chart=tar] path.line').getAttribute('d')")
    assert path.count("M") == 2 and "L" not in path  # two points, a gap between
    assert "NaN" not in path and page.complaints == []
