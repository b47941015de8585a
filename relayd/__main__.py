"""The command line: `relayd COMMAND`, or `python -m relayd COMMAND`."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
