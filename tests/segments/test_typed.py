"""What msgspec refuses is said in our words."""

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from segments.typed import sentence_of


class Row(msgspec.Struct):
    n: Annotated[int, Meta(ge=0, le=9)]
    may: int | None = None
    names: dict[str, Annotated[str, Meta(min_length=1, pattern="^x")]] = {}
    pair: tuple[int, int] = (1, 2)
    flag: bool = False


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "n is missing"),
        ({"n": "1"}, "n: expected a whole number, not a text"),
        ({"n": True}, "n: expected a whole number, not true or false"),
        ({"n": -1}, "n: expected a whole number of at least 0"),
        ({"n": 10}, "n: expected a whole number up to 9"),
        ({"n": 1, "may": []}, "may: expected a whole number or nothing, not a list"),
        ({"n": 1, "names": {"a": ""}}, "names[...]: expected a text of length at least 1"),
        ({"n": 1, "names": {"a": "y"}}, "names[...]: expected a text matching '^x'"),
        ({"n": 1, "pair": [1]}, "pair: expected a list of length 2, not 1"),
        ({"n": 1, "flag": {}}, "flag: expected true or false, not names with values"),
        ([], "expected names with values, not a list"),
    ],
)
def test_sentences(fields: object, sentence: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(fields, Row)
    assert sentence_of(refused.value) == sentence
