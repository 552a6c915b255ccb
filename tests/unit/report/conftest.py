"""Reports are tested on the made-up sweeps of the lab."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))
