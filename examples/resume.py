"""Stop and go on: a resumed run ends with the bits of the one that was never interrupted."""

import manyhands

if __name__ == "__main__":
    options = {"engine": "threads", "workers": 2, "data": "mnist:train=3000,test=500", "checkpoint_every": 20}
    whole = manyhands.train("mlp", epochs=2, **options)
    half = manyhands.train("mlp", epochs=1, **options)
    resumed = manyhands.train("mlp", resume=half.id, epochs=2)
    print("the same bits" if resumed.weights_sha256 == whole.weights_sha256 else "other bits")
