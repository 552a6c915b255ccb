"""What a cross-validation is asked for besides the settings of a run: its own options, as its file keeps them."""

from typing import Any, final

from pydantic import BaseModel, ConfigDict, ValidationError

from manyhands.config import as_toml, sentence_of
from manyhands.errors import UserError

FOLDS = 10
"""Parts of the data, if not asked for otherwise."""


@final
class Options(BaseModel):
    """The options of `manyhands crossval` that `manyhands train` has not; None where one was not given."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    folds: int | list[int] | None = None
    """A table has several."""
    split_data: bool = False
    nodes: int | list[int] | None = None
    """A table has several."""
    table: bool = False
    stacked: bool | None = None
    baseline: bool | None = None

    def to_toml(self) -> str:
        """Write those given as TOML, to run again with `--config`."""
        return as_toml(self.model_dump(exclude_none=True))


def make_options(values: dict[str, Any]) -> Options:
    """Validate; a bad value is a one-sentence error that names the option."""
    try:
        return Options.model_validate(values)
    except ValidationError as error:
        raise UserError(sentence_of(error)) from None
