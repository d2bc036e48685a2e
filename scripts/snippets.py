"""The code of a Markdown page: run it as a reader would, and compare what it prints with what the
page says.

    python scripts/snippets.py docs/start.md           # run a page, show where the output differs
    python scripts/snippets.py --write docs/start.md   # … and put what it prints into the page

Blocks of Python share one namespace, from top to bottom, in an empty folder. A ``text`` block
right after one is what it prints. Figures a page saves there as tutorial-….png go to docs/img."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.M | re.S
)
SHELL = re.compile(r"(?:^|`)(?:\$ )?(fmrl (?:[a-z]+)[^`\n|#>]*)", re.M)


IMAGES = Path(__file__).parent.parent / "docs" / "img"
SCRIPT = re.compile(r"^```sh\n(.*?)^```\n", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One block of Python: its code, where it begins, and what the page says it prints (None:
    nothing is said).
    """

    code: str
    line: int
    output: str | None
    span: tuple[int, int]  # of the output, in the page


def blocks(page: str) -> list[Block]:
    """The Python blocks of a page.

    >>> [b.output for b in blocks("```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n")]
    ['1\\n']
    """
    found = BLOCK.finditer(page)
    return [
        Block(m["code"], page.count("\n", 0, m.start()) + 2, m["output"], m.span("output"))
        for m in found
    ]


def commands(page: str) -> list[str]:
    """The ``fmrl …`` commands a page names, on lines of their own or in backticks, without
    comments, pipes and redirections.

    >>> commands("Say `fmrl demo --out here`, or\\n```\\nfmrl certify run  # later\\n```\\n")
    ['fmrl demo --out here', 'fmrl certify run']
    """
    return [m.group(1).strip() for m in SHELL.finditer(page)]


def scripts(page: str) -> list[list[str]]:
    """The words of every ``fmrl …`` command in the ``sh`` blocks of a page, in their order.

    >>> scripts('```sh\\nfmrl train a.csv --update "FAL()"  # learn\\n```\\n')
    [['train', 'a.csv', '--update', 'FAL()']]
    """
    lines = [line for block in SCRIPT.findall(page) for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fmrl ")]


def play(
    page: str, name: str, change: Callable[[str], str] = str, names: dict[str, Any] | None = None
) -> list[str]:
    """What every block prints. change: applied to code before it runs. Tracebacks point into the
    page.
    """
    module = types.ModuleType("page")  # a real one, because dataclasses look for it
    sys.modules["page"] = module
    vars(module).update(names or {})
    printed = []
    for block in blocks(page):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (block.line - 1) + change(block.code), name, "exec"), vars(module))
        printed.append(out.getvalue())
    return printed


def same(a: str, b: str) -> bool:
    """Equal but for spaces."""
    return a.split() == b.split()


def filled(page: str, printed: list[str]) -> str:
    """The page with what was printed in the place of its output blocks."""
    for block, text in reversed(list(zip(blocks(page), printed, strict=True))):
        if block.output is not None:
            page = page[: block.span[0]] + text + page[block.span[1] :]
    return page


def main() -> None:
    """Run the pages named."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("pages", type=Path, nargs="+")
    options.add_argument("--write", action="store_true", help="put what is printed into the page")
    given = options.parse_args()
    for path in [p.resolve() for p in given.pages]:
        text, here = path.read_text(encoding="utf-8"), Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                printed = play(text, path.name)
            finally:
                os.chdir(here)
            if given.write:
                for made in Path(folder).glob("tutorial-*.png"):
                    shutil.copyfile(made, IMAGES / made.name)
        for block, now in zip(blocks(text), printed, strict=True):
            if block.output is not None and not same(block.output, now):
                print(f"{path.name}, line {block.line}, prints\n{now}")
        if given.write:
            path.write_text(filled(text, printed), encoding="utf-8")


if __name__ == "__main__":
    main()
