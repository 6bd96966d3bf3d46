"""``python -m qba`` is the command line."""

from qba.cli import main

if __name__ == "__main__":
    main()
