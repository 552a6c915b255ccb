"""Small files of real formats, made at run time: image folders, tables as Parquet, Arrow and CSV, tar shards."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from PIL import Image

Sides = tuple[int, int]


def picture(number: int, sides: Sides = (6, 5), mode: str = "RGB") -> Image.Image:
    """Return noise that depends on the number alone; `sides` are width and height."""
    shape = (sides[1], sides[0], 3) if mode == "RGB" else (sides[1], sides[0])
    pixels = np.random.default_rng(number).integers(0, 256, shape, np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str = "png") -> bytes:
    """Return the bytes of an image file."""
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def image_folder(
    folder: Path, classes: Mapping[str, int], sides: Sides = (6, 5), kind: str = "png", first: int = 0
) -> Path:
    """Write a folder for every class with a number of images."""
    for place, (name, number) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(number):
            path = folder / name / f"{i:03}.{kind}"
            path.write_bytes(encoded(picture(first + 1000 * place + i, sides), "jpeg" if kind == "jpg" else kind))
    return folder


def write_table(path: Path, columns: Mapping[str, Any], rows_a_piece: int = 7) -> Path:
    """Write columns as the kind of file that the path ends in; `.stream.arrow` is a stream, `.arrow` a file."""
    table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=rows_a_piece)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        make = pa.ipc.new_stream if ".stream" in path.suffixes else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=rows_a_piece):
                writer.write_batch(batch)
    return path


def save_to_disk(folder: Path, columns: Mapping[str, Any]) -> Path:
    """Write a folder as `datasets.Dataset.save_to_disk` does."""
    name = "data-00000-of-00001"
    write_table(folder / f"{name}.stream.arrow", columns).rename(folder / f"{name}.arrow")
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": f"{name}.arrow"}], "_format_type": None})
    )
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write_tar(path: Path, samples: Sequence[Mapping[str, bytes]], first: int = 0) -> Path:
    """Write a shard in which every sample has members of some endings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, members in enumerate(samples, first):
            for ending, data in members.items():
                info = tarfile.TarInfo(f"part/{number:05}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path
