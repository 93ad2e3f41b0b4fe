"""`python -m optireduce.cli` is the `optireduce` command."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
