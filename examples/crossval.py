"""Ten folds on four workers, and the paper's way: data cut over nodes, weights averaged, a hold-out nobody saw."""

from manyhands import cross_validate

if __name__ == "__main__":
    small = {"data": "mnist:train=5000,test=1000", "epochs": 3, "lr": 0.05}

    record = cross_validate("mlp", folds=10, engine="mpi", workers=4, **small)
    print(f"accuracy {100 * record.accuracy:.2f} ± {100 * (record.interval or 0):.2f} %")
    print(f"the bits of one worker: {record.bit_equal}; speed-up {record.speed_up:.2f}")
    print(f"performance improvement {record.improvement_pct:.1f} %")

    record = cross_validate("mlp", folds=10, split_data=True, engine="mpi", workers=4, **small)
    assert record.hold_out is not None
    print(f"data cut over {record.nodes} nodes: hold-out accuracy {100 * record.hold_out.accuracy:.2f} %")
