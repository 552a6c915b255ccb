"""The engines that can be calibrated. Imported by the command line before torch is."""

from typing import TYPE_CHECKING

from manyhands.errors import unknown
from manyhands.spec import cut_list

if TYPE_CHECKING:
    from manyhands.model.fit_comm import CommModel

MODELS: "dict[str, CommModel]" = {"threads": "slices", "mpi": "messages", "torch": "messages"}
"""By engine, the formulas that are fitted to its calls."""


def check_calibrated(engines: str, kind: str = "engine that can be calibrated") -> None:
    """Refuse engines, separated by commas, that cannot be calibrated; errors call them `kind`."""
    for engine in filter(None, cut_list(engines)):
        if engine not in MODELS:
            unknown(kind, engine, MODELS)
