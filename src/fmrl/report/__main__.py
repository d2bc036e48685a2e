"""python -m fmrl.report facts.json report.html."""

import sys

from fmrl.files import read_json
from fmrl.report.page import write


def main(arguments: list[str]) -> int:
    """Exit code 0, or 2 with one line on what is wrong."""
    if len(arguments) != 2:
        print("usage: python -m fmrl.report FACTS.json REPORT.html", file=sys.stderr)
        return 2
    try:
        print(write(read_json(arguments[0]), arguments[1]))
    except (OSError, ValueError) as error:  # an FMRLError is a ValueError
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
