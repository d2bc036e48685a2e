"""``python -m fmrl``: the program ``fmrl``."""

from fmrl_program import run

if __name__ == "__main__":
    run()
