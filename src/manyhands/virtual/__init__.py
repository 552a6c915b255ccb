"""Virtual ranks: strategies' own code on workers that do not exist, each with a clock and weights.

| file | does |
| --- | --- |
| `events` | step times of n ranks, with clocks and without weights |
| `codec` | times of encoding and decoding a gradient |
| `train` | `simulate --train`: the weights that n workers would have, and when |
| `courses` | how to train them: one worker, replicas side by side, or ranks in turns |
| `groups`, `delayed`, `rows` | replicas side by side, their delayed updates, their rows |
| `ranks` | the strategy's own code, rank after rank |
| `scores` | loss and accuracy against virtual time |
"""
