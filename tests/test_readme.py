"""The README's snippets run as printed, and its demo table is what the demo prints."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fmrl
from fmrl.cli.main import app

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture
def visits(tmp_path, monkeypatch):
    """A table such as the README speaks of: 30 shops, twelve visits each."""
    rng = np.random.default_rng(0)
    lines = ["shop,price,weekday,sold"]
    for shop in range(30):
        for day in range(12):
            price = rng.normal()
            sold = day % 2 if day < 2 else int(price + 0.3 * rng.normal() < 0)
            lines.append(f"shop{shop},{price:.4f},{day % 7},{sold}")
    (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["table", "compose"])
def test_snippet_runs(snippet, visits, capsys):
    exec(compile(snippet, "README.md", "exec"), {})
    assert "regret" in capsys.readouterr().out


def test_command_line_prints_the_certificate_of_the_snippet(visits):
    tasks = list(fmrl.tasks_from_frame("visits.csv", task="shop", target="sold"))
    fmrl.save_history("run.npz", fmrl.run(fmrl.presets.paper(), tasks))
    result = CliRunner().invoke(app, ["certify", "run.npz"])
    assert result.exit_code == 0 and "It is proved to be at most" in " ".join(result.output.replace("│", " ").split())


def test_demo_prints_the_readme_table(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    for line in README.splitlines():
        if line.startswith("│"):
            assert " ".join(line.split()) in " ".join(result.output.split()), line
    assert {p.name for p in (tmp_path / "demo").iterdir()} >= {
        "record.json",
        "tar.png",
        "guess.svg",
        "similarity.png",
        "digits-FAL.npz",
    }
