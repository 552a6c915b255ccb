"""Asynchronous training, then the same run again: a server that keeps to the recorded order gives the same weights."""

import manyhands

if __name__ == "__main__":
    options = {"engine": "threads", "workers": 3, "data": "mnist:train=3000,test=1000", "epochs": 2, "lr": 0.05}
    first = manyhands.train("mlp", sync="async-server:servers=2", **options)
    for rank in first.ranks:
        if rank.role == "server":
            print(f"server {rank.rank}: weights {rank.notes['staleness_mean']:.2f} updates old on average")
    again = manyhands.train("mlp", sync=f"async-server:servers=2,replay=runs/{first.id}", **options)
    print("replayed to the same bits" if again.weights_sha256 == first.weights_sha256 else "other bits")
