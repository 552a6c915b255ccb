"""Keep reproductions as compact records: python benchmarks/papers/keep.py reproductions FOLDER

The record holds the runs and the predictions; `manyhands reproduce --document` makes the tables from them.
"""

import sys
from pathlib import Path

from manyhands.record.files import write_atomically
from manyhands.record.papers import ReproductionDir
from manyhands.reproduction.document import compact


def main() -> None:
    """Write the record of each reproduction below the first folder, into a folder of its name below the second."""
    out, to = map(Path, sys.argv[1:3])
    for folder in ReproductionDir.all_in(out):
        record = compact(folder.read())
        path = to / record.id / ReproductionDir.record_file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, record.model_dump_json(exclude_defaults=True) + "\n")
        print(f"{path}: {record.status}, {len(record.taken)} runs, {len(record.predictions)} predictions")


if __name__ == "__main__":
    main()
