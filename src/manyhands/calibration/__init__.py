"""`manyhands calibrate`: measure what steps and exchanges take on this machine.

| file | does |
| --- | --- |
| `calibrate` | the stages, within the budget; the file is in `record/calibration.py` |
| `plan` | which stages there is time for |
| `worker` | what each rank does; clocks of several hosts are compared |
| `steps` | steps by rows, alone and beside other ranks |
| `calls` | exchanges by bytes |
| `cores` | bare threads: what busy cores, memory and Python's lock cost each other |
| `counts` | operations of a step |
| `fits` | latency, bandwidth and arithmetic from the times of calls |
| `busy` | whether other programs used the cores meanwhile |
| `engines` | which engines can be calibrated |
| `gpu/` | the same for GPUs |
"""
