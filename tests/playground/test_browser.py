"""The playground in a real browser: drawing, dragging, keys, touch, answers, frames, manners."""

import json

import numpy as np
import pytest

from fmrl.playground import table_of

from .conftest import SCENES

# Signs as a hand draws them with few straight strokes, in shares of a pad.
RECORDED = [
    [[(0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8), (0.2, 0.2)]],
    [[(0.2, 0.8), (0.5, 0.15), (0.8, 0.8)], [(0.33, 0.55), (0.67, 0.55)]],
    [[(0.5, 0.1), (0.5, 0.9)], [(0.15, 0.4), (0.85, 0.4)]],
]
QUERY = [[(0.25, 0.85), (0.45, 0.2), (0.75, 0.75)], [(0.3, 0.6), (0.6, 0.55)]]


def until(page, condition="probe.done()", seconds=60):
    """Wait in the page until a condition holds."""
    assert page.js(f"probe.until(() => {condition}, {seconds})"), condition


def stroke(page, pad, strokes, touch=False):
    """Draw on a pad, given as an expression, by mouse or by finger."""
    page.js(f"{pad}.canvas.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    x, y, w, h = page.js(
        f"(r => [r.x, r.y, r.width, r.height])({pad}.canvas.getBoundingClientRect())"
    )
    for line in strokes:
        at = [(x + w * a, y + h * b) for a, b in line]
        if touch:
            kinds = ["touchStart", *["touchMove"] * (len(at) - 1)]
            for kind, (a, b) in zip(kinds, at, strict=True):
                page.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": a, "y": b}])
            page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            continue
        page.mouse("mouseMoved", *at[0])
        page.mouse("mousePressed", *at[0], 1)
        for a, b in at[1:]:
            page.mouse("mouseMoved", a, b, 1)
        page.mouse("mouseReleased", *at[-1], 1)


def draw_all(page, touch=False):
    page.js("playground.draw.find('clear').click()")
    assert "Draw A, B, C" in page.js("playground.draw.find('state').textContent")
    for c, strokes in enumerate(RECORDED):
        stroke(page, f"playground.draw.pads[{c}][0]", strokes, touch)
    stroke(page, "playground.draw.query", QUERY, touch)
    until(page)
    page.frames()


@pytest.mark.parametrize("touch", [False, True], ids=["mouse", "touch"])
def test_drawings_are_answered_as_the_engine_does(open_page, training, touch):
    """Drawn by events, adapted in the page's worker: both networks answer as fmrl.deep does to
    1e-3, and the page shows these answers."""
    from fmrl.deep import Adam

    from . import engine
    from .node import call

    size = {"width": 390, "height": 844} if touch else {}
    page = open_page(touch=touch, **size)
    draw_all(page, touch)
    drawn = page.js("playground.draw.all.map(pad => pad.strokes)")
    assert [len(s) for s in drawn] == [1, 2, 2, 2]
    for strokes, recorded in zip(drawn, [*RECORDED, QUERY], strict=True):
        for line, given in zip(strokes, recorded, strict=True):
            np.testing.assert_allclose([line[0], line[-1]], [given[0], given[-1]], atol=0.02)
    shown = page.js("playground.draw.shown")
    *images, query = call(("strokes.js",), "given.map(s => [...pictureOf(s)])", drawn)
    labels = [0, 1, 2]
    start = training.fewer(engine.trainer(training), 3)
    learned = engine.answer(start, images, labels, query, 30)
    np.testing.assert_allclose(shown["learned"]["shares"], learned, atol=1e-3)
    theta = call(("random.js", "network.js"), "[...randomStart(layoutOf(24, 3, 28), 1)]")
    rule = Adam(1e-3, carry=False)
    random = engine.answer(engine.network(theta, 3, 24), images, labels, query, 30, rule)
    np.testing.assert_allclose(shown["random"]["shares"], random, atol=1e-3)
    rows = "playground.draw.find('learned-shares').querySelectorAll('output')"
    assert page.js(f"[...{rows}].map(o => o.textContent)") == [
        f"{np.floor(100 * p + 0.5):.0f} %" for p in learned
    ]
    said = page.js("playground.draw.find('learned-answer').textContent")
    assert said == f"says {'ABC'[int(np.argmax(learned))]}" and page.complaints == []


def test_scenes_and_silence(open_page):
    """The recorded scenes to 1e-9, as the browser computes them; no complaint, no request but the
    page and its worker, which comes from the page."""
    page = open_page()
    until(page)
    assert page.complaints == []
    assert [u.partition(":")[0] for u in page.requests] == ["file", "blob"]
    for scene in SCENES:
        found = page.js(
            f"(g => ['algorithm', 'strawman', 'single'].map(m => playground.playAll(m, g.points, "
            f"g.settings).map(r => [r.regret, r.bound, r.guess])))({json.dumps(scene)})"
        )
        for rows, method in zip(found, ("algorithm", "strawman", "single"), strict=True):
            expected = [scene["expected"][method][k] for k in ("regret", "bound", "guess")]
            np.testing.assert_allclose(np.array(rows).T, expected, rtol=0, atol=1e-9)
    for asked in ("fetch('https://example.invalid')", "import('https://example.invalid/x.js')"):
        assert page.js(f"{asked}.then(() => 'sent', () => 'refused')") == "refused"


def test_choices_and_frames(open_page, record_property):
    """Five signs with three drawings each: 30 steps, frame after frame; a change starts anew."""
    page = open_page()
    page.js("probe.choose('ways', 5), probe.choose('shots', 3)")
    middle, late = np.percentile(np.diff(page.js("probe.frames(probe.done)")), [50, 95])
    rate = 1000 / middle
    record_property(
        "ms between frames while adapting, median and 95th", (float(middle), float(late))
    )
    assert rate > 20 and len(page.js("playground.draw.sent.labels")) == 15
    page.js("probe.choose('ways', 4), probe.choose('shots', 1)")
    until(page)
    curves, before = page.js("[playground.draw.curves, playground.draw.shown.random.shares]")
    assert len(curves["learned"]) == len(curves["random"]) == 31
    assert curves["learned"][30] < curves["learned"][0]
    page.js("playground.draw.find('again').click()")
    until(page)
    learned, after = page.js(
        "[playground.draw.curves.learned, playground.draw.shown.random.shares]"
    )
    assert learned == curves["learned"] and after != before and len(after) == 4
    page.js("playground.draw.pads[2].forEach(p => p.set([]))")
    assert page.js("playground.draw.find('state').textContent") == "Draw C to begin."
    assert page.js("playground.draw.find('learned-shares').textContent").count("–") == 4


def test_dragging_tasks(open_page):
    """A dot follows the pointer, a press elsewhere adds one, keys do the same; the numbers are
    those of the points shown."""
    page = open_page()
    arena = "playground.watch.arena.svg"
    page.js(f"{arena}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    x, y, w, h = page.js(f"(r => [r.x, r.y, r.width, r.height])({arena}.getBoundingClientRect())")
    place = lambda p: (x + w * (p[0] + 1.1) / 2.2, y + h * (1.1 - p[1]) / 2.2)  # noqa: E731
    first = page.js("playground.watch.points[23]")
    before = page.js("playground.watch.find('tar').textContent")
    page.mouse("mouseMoved", *place(first))
    page.mouse("mousePressed", *place(first), 1)
    page.mouse("mouseMoved", *place((-0.5, -0.5)), 1)
    page.mouse("mouseReleased", *place((-0.5, -0.5)), 1)
    chosen = page.js("playground.watch.chosen")
    moved = page.js(f"playground.watch.points[{chosen}]")
    np.testing.assert_allclose(moved, [-0.5, -0.5], atol=0.01)
    assert page.js("playground.watch.find('tar').textContent") != before
    assert f"task {chosen + 1}: starts" in page.js("playground.watch.find('chosen').textContent")
    page.mouse("mousePressed", *place((-0.8, 0.3)), 1)
    page.mouse("mouseReleased", *place((-0.8, 0.3)), 1)
    assert page.js("playground.watch.points.length") == 25
    page.press("ArrowRight")
    np.testing.assert_allclose(page.js("playground.watch.points[24]"), [-0.76, 0.3], atol=0.01)
    page.press("Delete")
    page.press("PageUp")
    assert page.js("[playground.watch.points.length, playground.watch.chosen]") == [24, 22]
    page.js("playground.watch.find('reset').click()")
    page.js("playground.watch.find('next').click()")
    page.js("playground.watch.find('run').click()")
    until(page, "playground.watch.points.length >= 4")
    page.js("playground.watch.find('run').click()")
    count = page.js("playground.watch.points.length")
    shown = page.js("playground.watch.find('count').textContent")
    tar = page.js("playground.playAll('algorithm', playground.watch.points, "
        "{...playground.watch.settings, radius: 1}).at(-1).tar")  # fmt: skip
    assert shown == str(count) and float(
        page.js("playground.watch.find('tar').textContent")
    ) == pytest.approx(tar, rel=6e-3)
    slider = "playground.watch.root.querySelector('[data-setting=spread]')"
    page.js(f"{slider}.value = 0.4; {slider}.dispatchEvent(new Event('input'))")
    assert page.js("playground.watch.settings.spread") == 0.4
    assert page.js(f"{slider}.nextElementSibling.textContent") == "0.4" and page.complaints == []


def test_a_users_tasks_with_hostile_names(open_page, attacks):
    """Names are text wherever they appear, and the points are those of the run."""
    rng = np.random.default_rng(0)
    names = [*attacks] * 2
    page = open_page(table=table_of(rng.normal(size=(len(names), 4)), names, attacks[0]))
    assert (
        page.js("document.querySelector('#table [data-part=title]').textContent")[:9] == "</script>"
    )
    count = page.js("playground.table.points.length")
    assert count == len(names)
    each = "playground.table.touch({choose: t}), playground.table.find('chosen').textContent"
    said = page.js(f"playground.table.points.map((_, t) => ({each}))")
    assert all(": starts" in text for text in said) and attacks[4] in said[4]
    assert page.js("document.querySelectorAll('img, iframe, object, b script').length") == 0
    assert page.js("window.hacked") is None and page.complaints == []
    assert page.js("document.querySelector('[data-when=absent]').hidden") is True
    before = page.js("playground.table.points[3]")
    page.js("playground.table.touch({choose: 3, to: [0.1, -0.2]})")  # what is not drawn stays
    assert len(before) == 4 and page.js("playground.table.points[3]") == [0.1, -0.2, *before[2:]]
    page.js("playground.table.touch({remove: 0})")
    page.js("playground.table.find('reset').click()")
    assert page.js("playground.table.points.length") == count


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast_labels_and_keys(open_page, dark):
    """Text stands out 4.5 to 1; every control has a name and is reached by the Tab key alone."""
    rng = np.random.default_rng(1)
    page = open_page(table=table_of(rng.normal(size=(9, 3))), dark=dark)
    until(page)
    page.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.frames()
    faint = [(round(r, 2), text) for r, text in page.js("probe.colours()") if r < 4.5]
    assert faint == [] and page.js("probe.nameless()") == []
    assert page.js("probe.controls()") > 30 and page.unreached() == []


def test_drawing_by_keys(open_page):
    page = open_page()
    page.js("playground.draw.find('clear').click(), playground.draw.pads[0][0].canvas.focus()")
    for key in (" ", "ArrowRight", "ArrowRight", "ArrowDown", " "):
        page.press(key)
    assert page.js("playground.draw.pads[0][0].strokes.map(s => s.length)") == [4]
    assert page.js("playground.draw.find('state').textContent") == "Draw B, C to begin."
    page.press("Backspace")
    assert page.js("playground.draw.pads[0][0].strokes.length") == 0 and page.complaints == []


@pytest.mark.parametrize("width", [320, 390, 820])
def test_nothing_shifts_and_nothing_is_cut_off(open_page, width):
    """No layout shift from loading to the end of an adaptation and while tasks arrive, and no part
    wider than the screen."""
    table = table_of(np.random.default_rng(1).normal(size=(9, 3)))
    page = open_page(table=table, width=width, height=844, touch=width < 800)
    page.js("probe.shifts()")
    until(page)
    page.js("location.hash = 'watch', playground.watch.toggle()")
    until(page, "playground.watch.points.length >= 30")
    page.js("playground.watch.toggle(), playground.watch.touch({choose: 3})")
    page.frames()
    assert page.js("window.shift") < 0.02
    for ways in (3, 5):  # more signs may take more room
        page.js(f"probe.choose('ways', {ways})")
        page.frames()
        assert page.js("document.documentElement.scrollWidth") <= width
        assert page.js("Math.min(...playground.draw.all.map(p => p.canvas.clientWidth))") >= 80
    assert page.js("probe.wide()") == [] and page.complaints == []
