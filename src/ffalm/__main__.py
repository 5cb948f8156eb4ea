"""The command `ffalm`, and `python -m ffalm`."""

import gc
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback while its modules are still being imported."""
    gc.set_threshold(10_000)  # nothing that importing torch makes is garbage: looking for it takes a sixth of a second
    try:
        from ffalm.system.process_limits import allow_open_files, refusal

        allow_open_files()
        refused = refusal()
        if refused is not None:
            print(f"ffalm: {refused}", file=sys.stderr)
            sys.exit(2)
        from ffalm.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":  # worker processes import this module again
    main()
