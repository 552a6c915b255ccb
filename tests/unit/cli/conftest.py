"""Commands are shown the made-up records of the lab and of the reports."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("lab", "report")]
