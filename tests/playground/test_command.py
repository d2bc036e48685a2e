"""``fmrl playground`` and the link of a report: files that are there, with the run's tasks."""

import json
import re
import webbrowser
from urllib.parse import unquote

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import fmrl
from fmrl import playground, report
from fmrl.cli.main import app
from fmrl.playground.page import MOST
from fmrl.runs import Run


def invoke(*words):
    done = CliRunner().invoke(app, [str(w) for w in words])
    assert done.exit_code == 0, done.output
    return done.output.strip()


def data(path):
    """What a page was given."""
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a small table of shops, one of them with a hostile name."""
    home, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
    shop = np.repeat([f"shop {i}" for i in range(29)] + ["</script><b>"], 8)
    X = rng.normal(size=(240, 2))
    slope = np.repeat(rng.normal(size=(30, 2)), 8, axis=0)
    columns = {"shop": shop, "price": X[:, 0], "size": X[:, 1], "sold": (X * slope).sum(1)}
    pl.DataFrame(columns).write_csv(home / "visits.csv")
    asked = ("--task", "shop", "--target", "sold", "--holdout", 0, "--evaluate", 0)
    invoke("train", home / "visits.csv", *asked, "--out", home / "run")
    return home / "run"


def test_the_page_is_written_and_opened_only_if_wanted(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.chdir(tmp_path)
    assert invoke("playground", "--no-open") == "playground.html" and opened == []
    told = json.loads(invoke("playground", "--out", "in/my page.html", "--json"))
    path = tmp_path / "in" / "my page.html"
    assert opened == [path.as_uri()] and told["bytes"] == path.stat().st_size < 1_500_000
    assert path.read_text(encoding="utf-8") == (tmp_path / "playground.html").read_text("utf-8")
    assert told["tasks"] == 0 and data(path)["table"] is None


def test_a_runs_tasks_are_on_its_page_and_the_report_leads_there(run, tmp_path):
    invoke("playground", run, "--no-open")
    table = data(run / "playground.html")["table"]
    optima = Run.load(run).history.optimum
    assert table["of"] == len(optima) == len(table["points"]) == 30
    assert table["title"] == "sold by shop" and "</script><b>" in table["names"]
    order = pl.read_parquet(run / "tasks.parquet")["task"].to_list()
    assert table["names"] == order
    for out in (run / "report.html", tmp_path / "a b#<i>%20javascript:x.html"):
        invoke("report", run, "--out", out)
        link = re.search(r'<a href="(\./[^"]*)">Drag these tasks', out.read_text("utf-8"))[1]
        assert not re.search(r"[<>#\s:]", link)
        beside = out.parent / unquote(link)
        assert data(beside)["table"] == table
    bare = report.render({"title": "t", "similarity": report.similarity_map([[0.0, 1.0]] * 3)})
    assert "Drag these tasks" not in bare


def test_points_keep_order_and_shape_whatever_the_units():
    """In two dimensions all distances stay, up to one factor; zero is where it was; units and
    turns of the space do not matter."""
    rng = np.random.default_rng(0)
    optima = rng.normal([1.0, 0.4], 0.3, (40, 2))
    found = playground.table_of(optima, range(40))
    points = np.array(found.points)
    factor = np.linalg.norm(points, axis=1) / np.linalg.norm(optima, axis=1)
    np.testing.assert_allclose(factor, factor[0])
    apart = lambda p: np.linalg.norm(p[:, None] - p, axis=-1)  # noqa: E731
    np.testing.assert_allclose(apart(points), factor[0] * apart(optima), atol=1e-12)
    assert np.linalg.norm(points, axis=1).max() == pytest.approx(0.95)
    turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    np.testing.assert_allclose(
        np.abs(np.array(playground.table_of(1000 * optima @ turn).points)), np.abs(points)
    )
    assert found.names == tuple(map(str, range(40))) and sum(found.explained) == pytest.approx(1)


def test_long_odd_and_empty_runs():
    rng = np.random.default_rng(0)
    many = rng.normal(size=(5000, 3))
    many[7] = np.nan
    found = playground.table_of(many)
    assert found.of == 5000 and len(found.points) == MOST and found.names[0] == "task 0"
    assert np.isfinite(found.points).all() and found.names[-1] == "task 4999"
    assert playground.table_of(np.zeros((3, 4))).points == ((0.0, 0.0),) * 3
    assert len(playground.table_of([[2.0]]).points) == 1
    with pytest.raises(fmrl.FMRLError, match="no task has a finite optimum"):
        playground.table_of([[np.nan, 1.0]])
    with pytest.raises(fmrl.FMRLError, match="2 names were given for 3 tasks"):
        playground.table_of(np.zeros((3, 4)), ["a", "b"])
