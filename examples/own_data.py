"""Your own samples: a CSV file with a text and a label in each row, hashed into features."""

import csv
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import manyhands

WORDS = {"sport": ("goal", "match", "team"), "weather": ("rain", "sun", "wind"), "food": ("bread", "soup", "salt")}

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        path, draw = Path(folder) / "posts.csv", random.Random(0)
        with open(path, "w", newline="") as f:
            rows = csv.writer(f)
            rows.writerow(["post", "topic"])
            for _ in range(600):
                topic = draw.choice(list(WORDS))
                rows.writerow([" ".join(draw.choices(WORDS[topic], k=4)), topic])
        data = f"csv:{path},text=post,label=topic"
        record = manyhands.train("dnn", data=data, batch_size=32, epochs=5, engine="threads", workers=2, out=folder)
        print(f"{100 * record.test_accuracy:.2f} % of the topics found")
