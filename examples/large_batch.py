"""A batch that grows with the workers: scale the learning rate with it, and ease it in and out."""

import manyhands

if __name__ == "__main__":
    options = {"engine": "threads", "workers": 8, "batch_per_worker": 64, "data": "mnist:train=6000,test=2000"}
    for scaling in ("none", "linear"):
        record = manyhands.train("mlp", epochs=5, lr_scaling=scaling, **options)
        config = record.config
        print(
            f"batch {record.batch_size}, rate {config.lr:g}, warm-up {config.warmup:g}, decay {config.lr_decay}: "
            f"{100 * record.test_accuracy:.2f} %"
        )
