"""Engine `torch`: ranks as processes on this host, or those of a torchrun on many, joined by torch.distributed."""

from typing import final

from manyhands.comm.torch_ import TorchComm
from manyhands.config import RunConfig
from manyhands.launch.base import check_one_thread
from manyhands.launch.processes import ProcessLauncher, check_processes
from manyhands.launch.spawn import Children


@final
class TorchLauncher(ProcessLauncher):
    """`--workers` processes, and the servers."""

    features = TorchComm.features
    starter = Children()

    def check(self, config: RunConfig) -> None:
        check_one_thread(config)
        check_processes(config, self.starter)
