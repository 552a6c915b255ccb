"""Built-in tasks with the data of a paper's row, as variables that `calibrate` and `simulate` can name by this file."""

from dataclasses import replace

from manyhands.data import Dataset, load
from manyhands.tasks import dnn, softmax


def _images_56() -> Dataset:
    return load("mnist", image_size=56)


def _images_112() -> Dataset:
    return load("mnist", image_size=112)


softmax_56 = replace(softmax.task, name="softmax, images 56²", data=_images_56)
softmax_112 = replace(softmax.task, name="softmax, images 112²", data=_images_112)
dnn_tweets = replace(dnn.task, name="dnn on tweets", data="tweets")
