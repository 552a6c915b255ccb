"""Ways to agree, side by side: what each exchanges per step, and what accuracy comes out after the same epochs."""

import manyhands

SYNCS = (
    "allreduce", "reduce-broadcast", "sharded", "gather-server", "overlap", "parameter-server:servers=2",
    "async-server", "local-sgd:period=8", "average-epoch", "average-once", "gossip", "compressed:codec=topk",
)  # fmt: skip

if __name__ == "__main__":
    for sync in SYNCS:
        data = "mnist:train=3000,test=1000"
        record = manyhands.train("mlp", engine="threads", workers=3, sync=sync, data=data, epochs=2, lr=0.05)
        per_step = record.bytes_sent / record.steps / 2**20
        print(f"{sync:28} {100 * record.test_accuracy:5.2f} %   {per_step:6.2f} MiB per step")
