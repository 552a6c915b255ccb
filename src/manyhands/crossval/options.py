"""Options of `manyhands crossval` besides the settings of a run, as its configuration file keeps them."""

from typing import Any, final

from pydantic import BaseModel, ConfigDict, ValidationError

from manyhands.config import sentence_of
from manyhands.errors import UserError

FOLDS = 10
"""Default number of folds."""


@final
class Options(BaseModel):
    """The options of `manyhands crossval` that `manyhands train` lacks; None where one was not given."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    folds: int | list[int] | None = None
    """A list for a table."""
    split_data: bool = False
    nodes: int | list[int] | None = None
    """A list for a table."""
    table: bool = False
    stacked: bool | None = None
    baseline: bool | None = None


def make_options(values: dict[str, Any]) -> Options:
    """Return validated options; a bad value is a one-sentence error that names the option."""
    try:
        return Options.model_validate(values)
    except ValidationError as error:
        raise UserError(sentence_of(error)) from None
