"""Virtual ranks: the strategies' own code on workers that are not there, each with a clock and weights.

| file | does |
| --- | --- |
| `events` | follow the steps of n ranks, with clocks and without weights |
| `codec` | what encoding a gradient takes |
| `train` | `simulate --train`: the weights that n workers would have, and when |
| `courses` | which way to train: one worker, replicas side by side, or ranks in turns |
| `groups`, `delayed`, `rows` | replicas side by side, their steps put off and done as one product, their rows |
| `ranks` | the strategy's own code, rank after rank |
| `clock` | when each step ends |
| `scores` | loss and accuracy against virtual time |
"""
