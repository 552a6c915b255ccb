"""A head that hands out the work: three ranks on a Ray of their own, or on your cluster: python on_ray.py HOST:PORT"""

import sys

import manyhands

if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else ""
    options = {"data": "mnist:train=6000,test=1000", "exact": True}
    alone = manyhands.train("mlp", engine="serial", **options)
    ranks = manyhands.train("mlp", engine="ray", workers=3, ray_address=address, **options)
    same = "the same bits" if ranks.weights_sha256 == alone.weights_sha256 else "other bits"
    print(f"{100 * ranks.test_accuracy:.2f} % with {len(ranks.ranks)} ranks, and {same} as one worker")
