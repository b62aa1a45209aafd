"""Operations from elsewhere, by their names, in msgpack; and their answers as they are sent."""

import struct
from typing import Any

import msgspec

from segments.typed import sentence_of
from streamd.engine.caller import Caller
from streamd.engine.engine import Engine
from streamd.hop.declared import by_name
from streamd.hop.messages import answer_bytes
from streamd.net.turns import in_turns
from streamd.operations.errors import Reason, Refused

_MANY = 500  # rows, which are encoded in turns
_LIST = struct.Struct(">BI")  # the head of a list in msgpack: array 32, and how many


async def carry_out(engine: Engine, caller: Caller, name: str, fields: bytes) -> bytes:
    """Have an operation carried out.

    Args:
        engine: does it.
        caller: asks for it.
        name: of the operation.
        fields: its fields, in msgpack.

    Returns:
        The answer, in msgpack.

    Raises:
        Refused: there is no such operation, a field is not what it has to be, or see Engine.ask.
    """
    kind = by_name().get(name)
    if kind is None:
        raise Refused(Reason.PRECONDITION_FAILED, f"there is no operation {name[:40]!r}")
    try:
        request: Any = msgspec.msgpack.decode(fields, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(Reason.PRECONDITION_FAILED, sentence_of(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(Reason.PRECONDITION_FAILED, str(error)) from None
    answer = await engine.ask(caller, request)
    if not isinstance(answer, list) or len(answer) < _MANY:
        return answer_bytes(answer)
    rows = [answer_bytes(row) async for row in in_turns(answer)]
    return b"".join([_LIST.pack(0xDD, len(rows)), *rows])
