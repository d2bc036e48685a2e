"""The page without a browser: what it says, what it escapes, what it leaves out."""

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import fmrl
from fmrl import report
from fmrl.report import charts, sections
from fmrl.report.charts import specs
from fmrl.report.page import SECTIONS, embed
from fmrl.report.verdict import verdict


class Seen(HTMLParser):
    """Tags with attributes, visible text, and the embedded data."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.data, self._inside = [], [], "", None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else None
        if (tag, dict(attrs).get("type")) == ("script", "application/json"):
            self._inside = "data"

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == "data":
            self.data += data
        elif self._inside is None:
            self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", "".join(self.text))


def test_real_run_has_every_section(real):
    seen = Seen(report.render(real))
    ids = [attrs["id"] for tag, attrs in seen.tags if tag == "section"]
    assert ids == [key for key, *_ in SECTIONS]
    assert "The diamond is phi, the learned start" in seen.words
    assert not [attrs for _, attrs in seen.tags if attrs.get("class") == "missing"]
    drawn = [spec["id"] for spec in json.loads(seen.data)]
    assert drawn == ["heldout", "tar", "guess", "similarity", "environment"]
    assert "On 60 held-out tasks, averaged over all shots, the R² of FMRL is" in seen.words
    for planted in ("sensor 037", "sensor 181", "sensor 302"):
        assert planted in seen.words
    pairs = {(d["against"], d["shots"]): d for d in real["heldout"]["differences"]}
    # The number of the facts, not one of the page's own.
    assert f"{abs(pairs['per-task', None]['mean']):.3f} higher than that of fitting" in seen.words
    assert "@inproceedings{khodak2019provable" in seen.words


def test_is_a_pure_function_and_needs_nothing_else(real):
    page = report.render(real)
    assert page == report.render(json.loads(json.dumps(real)))
    tags = [attrs for _, attrs in Seen(page).tags]
    links = [attrs[key] for attrs in tags for key in ("src", "href") if key in attrs]
    assert links and all(value.startswith("#") or value == "data:," for value in links)
    assert not re.search(
        r"@import|url\((?!#)|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", page
    )
    assert "default-src 'none'" in page


def test_only_a_title():
    seen = Seen(report.render({"title": "bare"}))
    lines = [attrs for _, attrs in seen.tags if attrs.get("class") == "missing"]
    assert len(lines) == 7
    for command in ("fmrl certify RUN", "--holdout 0.2 --out RUN", "fmrl report RUN"):
        assert command in seen.words
    assert json.loads(seen.data) == []
    why = {"similarity": {"why": "Too <many> features."}}
    given = Seen(report.render({"title": "bare", "missing": why}))
    assert "Too <many> features." in given.words


@pytest.mark.parametrize(
    "section", ["data", "heldout", "learned", "curves", "similarity", "certificate", "run"]
)
def test_any_section_may_be_missing(real, section):
    page = report.render({key: value for key, value in real.items() if key != section})
    assert ('class="missing"' in page) == (section != "data")


def test_hostile_strings_stay_text(hostile):
    page = report.render(hostile)
    page.encode("utf-8")
    seen = Seen(page)
    tags = [tag for tag, _ in seen.tags]
    assert tags.count("script") == 2 and "img" not in tags and "svg" not in tags
    assert not [name for _, attrs in seen.tags for name in attrs if name.startswith("on")]
    assert "\x00" not in page and "window.hacked" in seen.words
    assert "{{script}}{{data}}" in seen.words  # a marker in a name is not a marker
    names = json.loads(seen.data)[1]["series"][0]["names"]
    assert names[0] == "</script><script>window.hacked = 1</script>" and max(map(len, names)) <= 200
    assert "nan" not in seen.words.lower().split()
    assert "NaN" not in seen.data and "Infinity" not in seen.data


def test_embedded_json_cannot_leave_its_element():
    text = embed({"</script>": "<!--", "a": [math.nan, math.inf, np.float64(2), "&\u2028"]})
    assert "<" not in text and ">" not in text and "&" not in text and "\u2028" not in text
    assert json.loads(text) == {"</script>": "<!--", "a": [None, None, 2.0, "&\u2028"]}


def test_thinning_keeps_extremes_and_says_so(large):
    page = report.render(large)
    seen = Seen(page)
    assert len(page) < 1_500_000
    found = {spec["id"]: spec for spec in json.loads(seen.data)}
    guess = next(s for s in found["guess"]["series"] if s["name"].startswith("guess"))
    assert len(guess["x"]) <= charts.MOST and max(guess["y"]) == 9.0
    assert guess["x"][guess["y"].index(9.0)] == 77_778
    distance, whole = found["guess"]["series"][0]["y"], large["curves"]["distance"]
    for extreme in (max, min):
        assert extreme(distance) == pytest.approx(extreme(whole), rel=1e-5)
    dots = sum(len(s["x"]) for s in found["similarity"]["series"])
    assert dots <= charts.CLOUD and found["similarity"]["series"][1]["names"][0] == "user 500"
    assert re.search(r"[\d,]+ of 100,000 tasks are drawn", seen.words)
    drawn = "1,500 of 100,000 tasks are drawn: outliers, the outermost and a random share."
    assert drawn in seen.words


def test_thinned_curve_is_near_the_whole_one():
    rng = np.random.default_rng(1)
    y = np.cumsum(rng.normal(size=50_000))
    kept = charts.thin([y])
    assert kept[0] == 0 and kept[-1] == len(y) - 1 and np.all(np.diff(kept) > 0)
    between = np.interp(np.arange(len(y)), kept, y[kept])
    assert np.abs(between - y).max() < 0.05 * np.ptp(y)
    gaps = np.where(np.arange(50_000) % 2, np.nan, y)
    kept = charts.thin([gaps])
    assert np.nanmax(gaps) in gaps[kept] and np.nanmin(gaps) in gaps[kept]


def test_drift_and_groups_are_shown_and_old_facts_still_render(real):
    rng = np.random.default_rng(0)
    optima = rng.normal(size=(300, 3))
    optima[120:] += 4
    optima[7] = np.nan  # a task without an optimum keeps its place in the order
    found = report.similarity_map(optima, ball=False)
    seen = Seen(report.render({"title": "t", "similarity": json.loads(json.dumps(found))}))
    assert found["environment"]["sentence"] in seen.words
    assert "change suddenly, after 120 (" in seen.words and "k-means value" in seen.words
    spec = next(s for s in json.loads(seen.data) if s["id"] == "environment")
    names = [s["name"] for s in spec["series"]]
    means = [f"from the mean of {which}" for which in ("all tasks before", "recent tasks")]
    assert names == [*means, "sudden change"]
    assert spec["series"][2]["x"] == [120]
    before = {k: v for k, v in found.items() if k != "environment"}
    old = Seen(report.render({"title": "t", "similarity": before}))
    assert [s["id"] for s in json.loads(old.data)] == ["similarity"]
    assert real["similarity"]["environment"]["sentence"] == "No drift and no groups found."


def test_the_diagnosis_and_the_model_are_told_apart():
    """Optima fall into two groups; a model around one place says why it does not follow."""
    optima = np.random.default_rng(0).normal(size=(300, 3))
    optima[::2] += 6
    found = {"title": "t", "similarity": report.similarity_map(optima, ball=False)}
    learned = report.coefficients(np.ones((1, 3)), ["a", "b", "c"])
    for kind, said in (("stationary", "The model is learned otherwise: one place. There"),
                       ("centres", "So is the model: one place. There")):  # fmt: skip
        learned |= {"environment": "one place", "kind": kind}
        words = Seen(report.render(json.loads(json.dumps(found | {"learned": learned})))).words
        assert "fall into 2 groups" in words and said in words


def test_one_task():
    task = fmrl.Task(np.eye(3), [0.1, 0.2, 0.3], loss=fmrl.Squared(), name="only")
    history = fmrl.run(fmrl.presets.paper(), [task])
    facts = {
        "title": "one",
        "curves": report.curves(history, ["only"]),
        "similarity": report.similarity_map(history.optimum, ["only"], phi=history.state.phi),
        "certificate": report.certificate_facts(fmrl.certify(history, [task])),
        "heldout": report.held_out({"FMRL": [[0.5]], "pooled": [[0.4]]}, [1], "accuracy"),
    }
    seen = Seen(report.render(facts))
    assert "only" in seen.data and "does not say whether meta-learning helped" in seen.words


def difference(mean, low, high, against="pooled", shots=None):
    return {"against": against, "shots": shots, "mean": mean, "low": low, "high": high}


@pytest.mark.parametrize(
    ("pairs", "answer", "tone"),
    [
        ([(0.2, 0.1, 0.3), (0.1, 0.05, 0.2)], "Yes: meta-learning helped", "yes"),
        ([(0.2, 0.1, 0.3), (0.001, 0.0005, 0.002)], "one pooled model did as well", "mixed"),
        ([(0.2, 0.1, 0.3), (0.01, -0.05, 0.1)], "no clear difference from one pooled", "mixed"),
        (
            [(0.2, 0.1, 0.3), (-0.1, -0.2, -0.05)],
            "Partly: better than fitting each task alone, worse than",
            "mixed",
        ),
        ([(-0.2, -0.3, -0.1), (0.01, -0.05, 0.1)], "No: fitting each task alone did better", "no"),
        (
            [(0.0, -0.002, 0.002), (0.0, -0.002, 0.002)],
            "No: fitting each task alone and one pooled model did as well",
            "no",
        ),
        ([(0.0, -0.1, 0.1), (0.0, -0.1, 0.1)], "No clear difference", "mixed"),
        ([(None, None, None)], "does not say", "unknown"),
        ([], "does not say", "unknown"),
    ],
)
def test_verdict(pairs, answer, tone):
    named = zip(pairs, ("per-task", "pooled"), strict=False)
    listed = [difference(*pair, against=name) for pair, name in named]
    methods = [{"name": "FMRL", "mean": [0.5]}]
    heldout = {"metric": "r2", "shots": [1], "methods": methods, "differences": listed, "tasks": 9}
    found = verdict(heldout)
    assert answer in found.answer and found.tone == tone


def test_verdict_does_not_hide_where_it_wins():
    """An average over all shots with 0 among them may hide a difference that is clear with some."""
    unclear = difference(0.02, -0.01, 0.05)
    wins = [difference(0.05, 0.02, 0.08, shots=2), difference(0.06, 0.03, 0.09, shots=4)]
    heldout = {"metric": "r2", "shots": [0, 2, 4], "methods": [], "tasks": 9}
    found = verdict(heldout | {"differences": [unclear, *wins]})
    assert found.answer == "Yes, better than one pooled model only with 2 and 4 shots."
    alone = difference(0.2, 0.1, 0.3, against="per-task")
    found = verdict(heldout | {"differences": [alone, unclear, *wins]})
    better = "against fitting each task alone; better than one pooled model only with 2 and 4 shots"
    assert found.answer == f"Yes, {better}." and found.tone == "mixed"
    found = verdict(heldout | {"differences": [alone, unclear, wins[0]]})  # which may be chance
    assert found.answer.endswith("; no clear difference from one pooled model.")
    lost = difference(-0.05, -0.06, -0.04, shots=0)
    found = verdict(heldout | {"differences": [unclear, *wins, lost]})
    assert found.answer == "No clear difference between FMRL and one pooled model."


def test_verdict_does_not_hide_where_it_loses():
    listed = [
        difference(0.1, 0.05, 0.2),
        difference(-0.05, -0.06, -0.04, shots=16),
        difference(-0.03, -0.06, -0.02, shots=32),
    ]
    heldout = {"metric": "accuracy", "shots": [1, 16, 32], "methods": [], "differences": listed}
    found = verdict(heldout | {"tasks": 9})
    but = "But with 16 and 32 shots one pooled model is ahead, by 5.0 points at most."
    assert found.tone == "yes" and found.reasons[-1] == but


@pytest.mark.parametrize("eventually", [0.1, 0.8, 0.99])
@pytest.mark.parametrize("pays_after", [2, None])
@pytest.mark.parametrize("gain", [-0.2, 0.0, 0.2, None])
def test_what_is_proved_does_not_turn_the_answer(eventually, pays_after, gain):
    """One verdict: what was measured answers, what is proved is said of the worst case."""
    listed = [] if gain is None else [difference(gain, gain - 0.005, gain + 0.005)]
    measured = {"metric": "log_loss", "shots": [1], "methods": [], "differences": listed}
    worth = {"eventually": eventually, "so_far": 1.2, "pays_after": pays_after, "tasks": 2900}
    alone, both = verdict(measured), verdict(measured, worth)
    assert both[:2] == alone[:2] and both.reasons[:-1] == alone.reasons
    said = both.reasons[-1]
    assert "What is proved" in said and "too few" not in said and "Learn across" not in said
    assert ("no better" in said) == (eventually > 0.95)
    assert ("not a score" in said) == (both.tone == "no" and eventually <= 0.95)
    assert ("Scores can be better" in said) == (both.tone == "yes" and eventually > 0.95)
    unmeasured = verdict(None, worth)
    assert unmeasured.tone == "unknown" and "not been measured" in unmeasured.answer


def test_lower_log_loss_is_a_gain_and_every_column_says_how_many_tasks():
    rng = np.random.default_rng(0)
    ours, base = rng.uniform(0.2, 0.4, (30, 3)), rng.uniform(0.5, 0.7, (30, 3))
    base[:, 0] = np.nan  # a task alone says nothing without rows
    ours[:9, 2] = base[:9, 2] = np.nan
    found = report.held_out({"FMRL": ours, "per-task": base}, [0, 1, 2], "log_loss")
    gains = {d["shots"]: d for d in found["differences"]}
    assert gains[None]["low"] > 0 and gains[0]["mean"] is None
    assert [gains[k]["tasks"] for k in (0, 1, 2)] == [0, 30, 21]
    assert found["methods"][0]["tasks"] == [30, 30, 21]
    checks = [{"what": "accuracy", "method": "FMRL", "mean": [0.5, 0.75, None]}]
    seen = Seen(report.render({"title": "t", "heldout": {**found, "checks": checks}}))
    assert "Yes: meta-learning helped" in seen.words and "Lower is better" in seen.words
    assert "75.0 %" in seen.words and "With 1 shot the log-loss is: FMRL" in seen.words
    (spec,) = json.loads(seen.data)
    assert spec["series"][0]["x"] == [1, 2] and len(spec["series"][1]["y"]) == 2
    rows = re.findall(r"<tr><td>(\d)</td><td class=n>(\d+)</td>", report.render(
        {"title": "t", "heldout": found}))  # fmt: skip
    assert rows == [("0", "30"), ("1", "30"), ("2", "21")]


def test_families_are_named(real):
    learned = dict(real["learned"])
    none, some = {"none": 1.0, "full": 0.0, "common alike": 0.0}, {"none": 0.25}
    some |= {"common alike": 0.75}
    learned["families"] = [{"rows": 0, "weights": none}, {"rows": 4, "weights": some}]
    learned["environment"] = "tasks lie around 2 centres"
    words = Seen(report.render({"title": "t", "learned": learned})).words
    assert "While learning: tasks lie around 2 centres." in words
    assert "not at all" in words and "in any direction" not in words
    assert "in every column alike, around a common part that is not linear" in words
    assert "75.0 %" in words


def test_a_false_assumption_is_no_guarantee(real):
    broken = json.loads(json.dumps(real))
    for bound in broken["certificate"]["bounds"]:
        bound["assumptions"].append({"name": "the sun shines", "status": "false", "detail": ""})
    html = sections.certificate(broken)
    assert "No guarantee can be given" in html and "guarantee on TAR" not in html
    assert html.count("false here: the sun shines") == len(broken["certificate"]["bounds"])
    assert [s["name"] for s in charts.tar(broken)["series"]] == ["measured TAR"]
    assert "No bound is drawn" in report.render(broken)


def test_bound_drawn_is_the_certified_one(real):
    """It ends where the certificate says, and is called proved only if nothing under it is taken
    on trust.
    """
    by_name = {s["name"]: s for s in charts.tar(real)["series"]}
    last = next(b for b in real["certificate"]["bounds"] if b["name"] == "per-task sum")["total"]
    assert by_name["proved bound"]["y"][-1] == pytest.approx(last, rel=1e-3)
    assumed = json.loads(json.dumps(real).replace('"checked"', '"assumed"'))
    assert "bound, partly on trust" in [s["name"] for s in charts.tar(assumed)["series"]]
    trusting = {key: value for key, value in real.items() if key != "certificate"}
    assert "bound, assumptions unchecked" in [s["name"] for s in charts.tar(trusting)["series"]]
    assert "fmrl certify RUN" in report.render(trusting)


def test_curves_are_the_history(real):
    rng = np.random.default_rng(3)
    tasks = [
        fmrl.Task(rng.normal(size=(5, 2)), rng.normal(size=5), loss=fmrl.Squared())
        for _ in range(40)
    ]
    history = fmrl.run(fmrl.presets.paper(), tasks)
    found = report.curves(history)
    assert found["tar"][-1] == pytest.approx(float(history.tar))
    assert found["of"] == 40 and "name" not in found
    assert found["violations"] == int(np.sum(history.violations))
    assert found["tar_at_most"][-1] == pytest.approx(float(history.interval[1]))
    with pytest.raises(fmrl.FMRLError, match="39 names were given for 40 tasks"):
        report.curves(history, ["x"] * 39)
    with pytest.raises(fmrl.FMRLError, match="totals only"):
        report.curves(fmrl.run(fmrl.presets.paper(), tasks, keep="totals"))


@pytest.mark.parametrize("keep", ["all", "vectors", "scalars", "totals"])
def test_facts_of_any_history(keep):
    tasks = [fmrl.Task(np.eye(2), [0.1 * t, 0.2], loss=fmrl.Squared()) for t in range(6)]
    history = fmrl.run(fmrl.presets.paper(), tasks, keep=keep)
    facts = report.facts_of(history, tasks)
    seen = Seen(report.render(facts))
    assert ("similarity" in facts) == (keep in ("all", "vectors"))
    assert ("curves" in facts) == (keep != "totals")
    assert ("keep='vectors'" in seen.words) == (keep in ("scalars", "totals")) and "6" in seen.words
    assert facts["certificate"]["tasks"] == (0 if keep == "totals" else 6)


def test_outliers_are_rare_among_alike_tasks_and_found_when_planted():
    for dim in (1, 2, 20):
        alike = np.random.default_rng(dim).normal(size=(3000, dim))
        assert report.similarity_map(alike, ball=False)["outliers"] <= 3
        planted = np.vstack([alike, 30 + np.zeros((2, dim))])
        names = [p["name"] for p in report.similarity_map(planted, ball=False)["points"][:2]]
        assert sorted(names) == ["task 3000", "task 3001"]
    found = report.similarity_map([[1.0, 2.0]] * 9)
    assert found["outliers"] == 0 and found["explained"] == [0.0, 0.0]


def test_map_keeps_distances_in_the_plane():
    """With two dimensions the map is the data turned: all distances stay, and the ball encloses
    every point.
    """
    optima = np.random.default_rng(0).normal(size=(40, 2))
    found = report.similarity_map(optima)
    at = {int(p["name"].split()[1]): np.array([p["x"], p["y"]]) for p in found["points"]}
    for i, j in ((0, 1), (5, 30), (12, 39)):
        assert np.linalg.norm(at[i] - at[j]) == pytest.approx(np.linalg.norm(optima[i] - optima[j]))
    x, y, r = found["ball"]
    assert max(np.linalg.norm(p - [x, y]) for p in at.values()) <= r * (1 + 1e-9)
    assert sum(found["explained"]) == pytest.approx(1)


def test_held_out_intervals_are_student_and_paired():
    from scipy import stats

    rng = np.random.default_rng(0)
    ours, base = rng.normal(size=(30, 2)), rng.normal(size=(30, 2))
    ours[:3, 1] = base[:3, 1] = np.nan
    found = report.held_out({"FMRL": ours, "pooled": base}, [1, 2], "r2")
    d = next(d for d in found["differences"] if d["shots"] == 2)
    low, high = stats.ttest_rel(ours[3:, 1], base[3:, 1]).confidence_interval(0.95)
    assert (d["low"], d["high"]) == (pytest.approx(low), pytest.approx(high))
    assert found["methods"][0]["tasks"] == [30, 27]
    scores = {"FMRL": [[1.0], [0.9]], "pooled": [[0.0], [0.1]]}
    near = report.held_out(scores, [1], "accuracy")["methods"]
    assert near[0]["high"] == [1.0] and near[1]["low"] == [0.0]
    with pytest.raises(fmrl.FMRLError, match="different tasks"):
        report.held_out({"FMRL": ours, "pooled": base[:9]}, [1, 2], "r2")


@pytest.mark.parametrize(
    "facts",
    [
        None,
        {},
        {"title": ""},
        {"title": "t", "curves": {"task": [1, 2], "tar": [1.0]}},
        {"title": "t", "curves": {}},
        {"title": "t", "heldout": {"metric": "r2", "shots": [1], "methods": [{"name": "x"}]}},
        {"title": "t", "similarity": {"points": [3]}},
        {"title": "t", "certificate": {"bounds": [{}]}},
        {"title": "t", "run": 3},
    ],
)
def test_wrong_facts_are_refused_in_words(facts):
    with pytest.raises(fmrl.FMRLError):
        report.render(facts)


def test_facts_that_were_stored_give_the_page_and_it_is_written_whole(real, tmp_path):
    (tmp_path / "facts.json").write_text(json.dumps(real))
    stored = json.loads((tmp_path / "facts.json").read_text())
    assert report.write(stored, tmp_path / "out" / "r.html").name == "r.html"
    assert (tmp_path / "out" / "r.html").read_text(encoding="utf-8") == report.render(real)
    with pytest.raises(fmrl.FMRLError, match="cannot write"):
        report.write({"title": "t"}, tmp_path / "facts.json" / "r.html")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["r.html"]


def test_specs_of_nothing():
    empty = {"task": [], "tar": [], "guess": []}
    assert specs({"title": "t", "curves": empty})[0]["series"] == []
    report.render({"title": "t", "curves": empty})


def damaged(value, rng, chance):
    """The same facts with some of their parts replaced by what does not belong there."""
    if rng.random() < chance:
        strange = (None, "x", "<b>", -1, 0, 1e308, math.nan, math.inf, True)
        strange += ([], {}, [None], {"a": 1}, [[1]], b"bytes", object())
        return strange[rng.integers(len(strange))]
    if isinstance(value, dict):
        return {
            key: damaged(v, rng, chance) for key, v in value.items() if rng.random() > chance / 2
        }
    if isinstance(value, (list, tuple)):
        return [damaged(v, rng, chance) for v in value if rng.random() > chance / 4]
    return value


def test_damaged_facts_give_a_page_or_a_clear_error(real):
    """Nothing but FMRLError ever comes out, and what is rendered still holds two scripts and
    valid data.
    """
    small = json.loads(json.dumps(real))
    small["similarity"]["points"] = small["similarity"]["points"][:8]
    small["curves"] = {k: v[:8] if isinstance(v, list) else v for k, v in small["curves"].items()}
    small["certificate"]["curves"] = {k: v[:8] for k, v in small["certificate"]["curves"].items()}
    rendered = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        facts = damaged(small, rng, 0.002 if seed % 2 else 0.02)
        try:
            page = report.render(facts)
        except fmrl.FMRLError:
            continue
        rendered += 1
        seen = Seen(page)
        assert [tag for tag, _ in seen.tags].count("script") == 2
        json.loads(seen.data)
    assert rendered > 50  # the damage is mild enough that some pages survive


@pytest.mark.parametrize("rule", [fmrl.PerCoordinate(0.1, 0.1), fmrl.AverageDeviation()], ids=repr)
def test_a_learned_step_is_not_called_a_guess(rule):
    """A rule that learns the step guesses no distance, and none is violated."""
    rng = np.random.default_rng(0)
    tasks = [fmrl.Task(rng.normal(size=(5, 3)), rng.normal(size=5), loss=fmrl.Squared())] * 4
    history = fmrl.run(fmrl.FMRL(fmrl.Ball(2.0), fmrl.OGD(), similarity=rule), tasks)
    found = report.facts_of(history, tasks, features=["a", "b", "c"])
    page, step = report.render(found), rule.absolute
    assert ("step" in found["curves"]) == step == ("guess" not in found["curves"])
    for words in ("The guess D", "farther off than guessed", "guess was violated"):
        assert (words in page) != step, words
    assert ("learned from the tasks before it" in page) == step
    assert ("tasks differ in this coefficient" in page) == step
    if step:
        np.testing.assert_allclose(found["curves"]["step"], history.eta)
        steps = {c["feature"]: c["step"] for c in found["learned"]["coefficients"]}
        np.testing.assert_allclose([steps[f] for f in "abc"], history.state.guess.steps)
    certificate = fmrl.certify(history, tasks)
    assert (certificate.violations is None) == step
    assert fmrl.Certificate.from_json(certificate.json()).violations == certificate.violations
    certificate.figure()


def heldout_of(*lists, tasks=30, metric="log_loss"):
    """Facts of a comparison with one baseline: its mean and interval by shots; None is overall."""
    shots = list(range(len(lists) - 1))
    pairs = zip([None, *shots], lists, strict=True)
    differences = [difference(*ends, shots=k) for k, ends in pairs]
    methods = [
        {"name": "FMRL", "mean": [0.3] * len(shots), "tasks": [tasks] * len(shots)},
        {"name": "pooled", "mean": [0.4] * len(shots), "tasks": [tasks] * len(shots)},
    ]
    found = {"metric": metric, "shots": shots, "methods": methods, "differences": differences}
    return {"title": "t", "heldout": found | {"tasks": tasks}}


BETTER, WORSE, UNCLEAR = (0.1, 0.05, 0.15), (-0.1, -0.15, -0.05), (0.0, -0.1, 0.1)


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ([BETTER, UNCLEAR, BETTER], "Use it for new tasks"),
        ([WORSE, WORSE, WORSE], "Prefer one pooled model: it is better here"),
        ([UNCLEAR, UNCLEAR, BETTER], "Against one pooled model, adapt from 1 row of a new task"),
        ([UNCLEAR, BETTER, UNCLEAR], "adapt with 0 rows of a new task, not clearly with more"),
        ([UNCLEAR, UNCLEAR, UNCLEAR], "To tell it from one pooled model, hold out more tasks"),
        ([BETTER, WORSE, BETTER], "With 0 rows prefer one pooled model"),
    ],
)
def test_the_first_screen_says_what_to_do(lists, said):
    first = Seen(report.render(heldout_of(*lists)).partition('<section id="heldout"')[0]).words
    assert said in first and "What to do next" in first and "30 tasks in all were kept" in first
    words = [("better", BETTER), ("worse", WORSE), ("no clear difference", UNCLEAR)]
    for word, ends in words:
        assert (f">{word}</span>" in report.render(heldout_of(*lists))) == (ends in lists[1:])
    assert "with care" not in first and "TAR" not in first and "regret" not in first
    few = Seen(report.render(heldout_of(*lists, tasks=9))).words
    away = Seen(report.render(heldout_of(*lists, tasks=9) | {"data": {"heldout_tasks": 12}})).words
    assert "Of 12 tasks held out, 9 had rows enough." in away and "rows enough" not in few
    assert "Read lines for 0, 1 rows with care" in few


@pytest.mark.parametrize(("given", "advised"), [(0.2, 0.3), (0.3, 0.5), (0.5, None)])
def test_who_held_out_much_is_not_told_to_hold_out_as_much(given, advised):
    facts = heldout_of(UNCLEAR, UNCLEAR, UNCLEAR) | {"data": {"holdout": given}}
    page = Seen(report.render(facts)).words
    found = re.search(r"--holdout ([0-9.]+) --out", page)
    assert (found and float(found[1])) == advised
    assert advised or "it takes more tasks" in page


def test_the_gain_is_a_share_of_the_loss():
    assert "25 % less log-loss than one pooled model" in Seen(
        report.render(heldout_of(BETTER, BETTER))
    ).words.replace("\xa0", " ")
    found = Seen(report.render(heldout_of(WORSE, WORSE, metric="r2"))).words.replace("\xa0", " ")
    assert "17 % more squared error than one pooled model" in found
    found = Seen(report.render(heldout_of(WORSE, WORSE, metric="accuracy"))).words
    assert "10 fewer of 100 rows right than one pooled model" in found


def test_coefficients_say_for_which_class_they_speak(classes):
    listed = [{"feature": "price", "value": -1.5}, {"feature": "stock", "value": 0.5}]
    two = {"coefficients": listed, "positive": "sold", "negative": "kept"}
    words = Seen(report.render({"title": "t", "learned": two})).words
    assert "price speaks against sold (−1.5), stock speaks for sold (0.5)" in words
    assert "A coefficient above 0 speaks for class sold, below 0 for kept." in words
    none = {"title": "t", "learned": {"coefficients": listed}, "data": {"target_column": "euro"}}
    assert "price lowers euro (−1.5), stock raises euro (0.5)" in Seen(report.render(none)).words
    none["learned"]["note"] = "per standard deviation of a feature; of what is left"
    said = "stock raises euro (0.5), per standard deviation of a feature."
    assert said in Seen(report.render(none)).words
    many = Seen(report.render(classes)).words
    assert "above 0 speaks for the class beside it" in many
    assert "log-loss" in many and "calibration error" in many.lower()


def test_tasks_are_named_and_counted_under_every_column(real, classes):
    for facts in (real, classes):
        spec = json.loads(Seen(report.render(facts)).data)[0]
        counts = facts["heldout"]["methods"][0]["tasks"]
        shots = [k for k in facts["heldout"]["shots"] if k]
        assert spec["x"]["under"] == [f"n {n}" for n in counts[-len(shots) :]]
    words = Seen(report.render(real)).words
    assert "Look at sensor " in words and "the last of them" in words
    last = re.search(r"last in task (\d+) \(sensor (\d+)\)", real["certificate"]["reading"])
    assert last and int(last[1]) == int(last[2])


def test_a_sudden_change_names_the_first_task_after_it():
    optima = np.random.default_rng(0).normal(size=(300, 3))
    optima[120:] += 4
    names = [f"shop {i}" for i in range(300)]
    found = report.similarity_map(optima, names, ball=False)
    words = Seen(report.render({"title": "t", "similarity": found})).words
    assert "The first task after a change: shop 120." in words
    assert "Train again as new tasks come" in words
    # Of a model that was found to be better off with all tasks that would be a contradiction.
    still = {"coefficients": [], "kind": "stationary"}
    page = report.render({"title": "t", "similarity": found, "learned": still})
    assert "Train again as new tasks come" not in Seen(page).words


def test_cells_of_stacked_tables_carry_their_column():
    scores = {"FMRL": [[0.5], [0.6]], '"><i onload=x>': [[0.4], [0.5]], "pooled": [[0.4], [0.3]]}
    seen = Seen(report.render({"title": "t", "heldout": report.held_out(scores, [1], "r2")}))
    labels = [a["data-label"] for tag, a in seen.tags if tag == "td" and "data-label" in a]
    assert labels[:4] == ["shots", "tasks", "FMRL", '"><i onload=x>']
    assert not [tag for tag, _ in seen.tags if tag == "i"]
