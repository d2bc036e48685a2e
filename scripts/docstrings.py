"""For the site: examples in docstrings become blocks of code. A griffe extension, named in
mkdocs.yml.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).+\n?)*", re.M)


def fenced(text: str) -> str:
    """Wrap every run of lines that begins with >>> and ends at an empty line.

    >>> fenced("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo.").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Two.']
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text)


class Examples(griffe.Extension):
    """Applies `fenced` to every docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object once it is read."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
