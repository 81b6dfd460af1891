"""``python -m rljax``, which is `rljax.main`."""

from rljax.main import program

if __name__ == "__main__":
    program()
