"""The engines that can be calibrated. Imported by the command line before torch is."""

from typing import TYPE_CHECKING

from manyhands.errors import unknown
from manyhands.spec import cut_list

if TYPE_CHECKING:
    from manyhands.model.fit_comm import CommModel

MODELS: "dict[str, CommModel]" = {"threads": "slices", "mpi": "messages", "torch": "messages"}
"""The engines that can be measured, and the formulas that are fitted to their calls."""


def check_calibrated(engines: str, kind: str = "engine that can be calibrated") -> None:
    """Refuse engines, several with commas between them, of which no calibration can tell."""
    for engine in filter(None, cut_list(engines)):
        if engine not in MODELS:
            unknown(kind, engine, MODELS)
