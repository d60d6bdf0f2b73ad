"""python -m zshard.deepspeed.launcher: the `deepspeed` command (runner.py)."""

import sys

from .runner import main

sys.exit(main())
