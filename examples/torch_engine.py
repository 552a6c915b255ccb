"""Over torch.distributed: started by us, or by you: torchrun --nproc-per-node 2 -m manyhands train mlp --epochs 2"""

import manyhands

if __name__ == "__main__":
    record = manyhands.train("mlp", engine="torch", workers=2, sync="overlap", epochs=2)
    print(f"{100 * record.test_accuracy:.2f} % at {record.samples_per_s:,.0f} samples/s")
