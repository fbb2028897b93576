"""Events of ERC-1155, which moves several tokens at once: (id, amount) pairs from the data of a log. Pure."""

from __future__ import annotations

TRANSFER_SINGLE = "0xc3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62"
TRANSFER_BATCH = "0x4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb"
_WORD = 32


def moved(event: str, data: str) -> list[tuple[int, int]] | None:
    """What a log moves, in its order; None if the data is that of another contract's event with the same topic."""
    try:
        body = bytes.fromhex(data.removeprefix("0x"))
    except ValueError:
        return None
    if event == TRANSFER_SINGLE:
        return [(_number(body, 0), _number(body, _WORD))] if len(body) == 2 * _WORD else None
    if len(body) < 2 * _WORD:
        return None
    ids, amounts = (_numbers(body, _number(body, at)) for at in (0, _WORD))
    if ids is None or amounts is None or len(ids) != len(amounts):
        return None
    return list(zip(ids, amounts, strict=True))


def _number(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + _WORD], "big")


def _numbers(body: bytes, at: int) -> list[int] | None:
    """An array of the contract ABI: its length, then its elements."""
    first = at + _WORD
    if first > len(body) or _number(body, at) > (len(body) - first) // _WORD:
        return None
    return [_number(body, first + i * _WORD) for i in range(_number(body, at))]
