"""The same bits for any number of workers: `--exact` sums the gradients in one fixed tree, whoever computes them."""

import manyhands

if __name__ == "__main__":
    options = {"exact": True, "steps": 50, "data": "mnist:train=3000,test=500"}
    for engine, workers in (("serial", 1), ("threads", 2), ("threads", 3), ("mpi", 2), ("torch", 2)):
        record = manyhands.train("mlp", engine=engine, workers=workers, **options)
        print(f"{engine:8} ×{workers}  {record.weights_sha256[:16]}")
