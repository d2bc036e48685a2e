"""The tutorials as notebooks: every page of docs/tutorials as an .ipynb beside it.

    python scripts/notebooks.py           # write them
    python scripts/notebooks.py --check   # exit code 1 if one is not what its page says

Text becomes Markdown cells, ``python`` blocks code cells, ``sh`` blocks code cells with ``!``. What
a page shows as printed is left out: a notebook prints it again."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent / "docs" / "tutorials"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", re.M | re.S)
LINK = re.compile(r"^\*As a notebook: .*\*\n\n?", re.M)


def cells(page: str) -> list[dict[str, Any]]:
    """The cells of a page.

    >>> found = cells("# A\\n\\n```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n\\nthen\\n")
    >>> [(c["cell_type"], "".join(c["source"])) for c in found]
    [('markdown', '# A'), ('code', 'print(1)'), ('markdown', 'then')]
    >>> cells("```sh\\nfmrl demo\\n```\\n")[0]["source"]
    ['!fmrl demo']
    """
    page, at, found = LINK.sub("", page), 0, []

    def add(kind: str, text: str) -> None:
        text = text.strip("\n")
        if text:
            name = hashlib.sha256(f"{len(found)} {text}".encode()).hexdigest()[:12]
            cell = {"cell_type": kind, "id": name, "metadata": {}}
            more = {"execution_count": None, "outputs": []} if kind == "code" else {}
            found.append({**cell, "source": text.splitlines(keepends=True), **more})

    for match in BLOCK.finditer(page):
        add("markdown", page[at : match.start()])
        shell = match[1] == "sh"
        add("code", re.sub(r"^(?=\S)", "!", match[2], flags=re.M) if shell else match[2])
        at = match.end()
    add("markdown", page[at:])
    return found


def notebook(page: str) -> str:
    """A page as the text of a notebook."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells(page), "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write or check."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--check", action="store_true")
    check, stale = options.parse_args().check, []
    for page in sorted(PAGES.glob("*.md")):
        made, path = notebook(page.read_text(encoding="utf-8")), page.with_suffix(".ipynb")
        if check:
            stale += [path.name] * (not path.exists() or path.read_text(encoding="utf-8") != made)
        else:
            path.write_text(made, encoding="utf-8")
    for name in stale:
        print(f"{name} is not what its page says: run python scripts/notebooks.py")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
