"""The README's demo table is what the demo prints; its snippets run in test_docs."""

from pathlib import Path

from typer.testing import CliRunner

from fmrl.cli.main import app

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


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
