"""`python -m ffalm` is the command `ffalm`."""

from ffalm.cli import main

if __name__ == "__main__":  # worker processes import this module again
    main()
