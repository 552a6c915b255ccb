"""Engine `torch`: ranks as processes on this host, or those of a torchrun on many, joined by torch.distributed."""

from typing import final

from manyhands.comm.torch_ import TorchComm
from manyhands.launch.processes import ProcessLauncher
from manyhands.launch.spawn import Children


@final
class TorchLauncher(ProcessLauncher):
    """`--workers` processes, and the servers."""

    features = TorchComm.features
    starter = Children()
