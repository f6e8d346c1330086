"""`python -m partrain` is the command `partrain`."""

from partrain.cli.main import run

if __name__ == "__main__":
    run()
