"""Engine `torch`: ranks as processes on this host, or those of a torchrun on many, joined by torch.distributed."""

from typing import final

from manyhands.comm.torch_ import TorchComm
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.launch.processes import ProcessLauncher, check_processes
from manyhands.launch.spawn import Children


@final
class TorchLauncher(ProcessLauncher):
    """`--workers` processes, and the servers."""

    features = TorchComm.features
    starter = Children()

    def check(self, config: RunConfig) -> None:
        """Allow any number of workers of one thread each; inside torchrun, as many as it started."""
        hint = f"say --workers {config.size}, or choose --engine hybrid"
        check(config.threads == 1, f"--threads belongs to engine hybrid; {hint}")
        check_processes(config, self.starter)
