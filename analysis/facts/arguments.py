"""What operators were called with, as the reader keeps it beside the trace: JSON text, found again by slice."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE, Array
from molprof.common.errors import EngineError

_EMPTY = b"{}"
_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Arguments(Struct, frozen=True):
    """Arguments of operators (`reader.events.ARGUMENTS`) at their place: block of the file, and number in it.

    The text is kept, packed to some percent of the file's: a compressed file or a pipe has no place to read again.
    """

    number: bytes = (
        b""  # int32, of each operator by slice: its place among all that are kept; NONE where its block has none
    )
    first: bytes = b""  # int64, of each block: the place of its first
    blocks: list[bytes] = []  # none where the file has none
    checksum: int = 0  # of the operators' times

    def texts(self, operators: tuple[Array, Array, Array], wanted: Collection[int | None] | None) -> dict[int, bytes]:
        """Return the arguments of the operators that have some, by slice, in order; of `wanted` alone, if given.

        operators: slices, starts and ends of all, in order of slice. Raises EngineError if they are not the reader's.
        """
        if not self.blocks:
            return {}
        ids, starts, ends = operators
        number, first = np.frombuffer(self.number, dtype=np.int32), np.frombuffer(self.first, dtype=np.int64)
        if len(ids) != len(number) or times_checksum(starts, ends) != self.checksum:
            raise EngineError("the trace processor does not number operators in the order in which they start")
        has_some = number != NONE
        if wanted is not None:
            has_some &= np.isin(ids, np.array([item for item in wanted if item is not None], dtype=np.int64))
        rows = np.flatnonzero(has_some)
        order = rows[np.argsort(number[rows])]
        block_of = np.searchsorted(first, number[order], side="right") - 1
        texts: dict[int, bytes] = dict.fromkeys(ids[rows].tolist(), b"")
        distinct: dict[bytes, bytes] = {}
        places = zip(block_of.tolist(), ids[order].tolist(), (number[order] - first[block_of]).tolist(), strict=True)
        for block, group in groupby(places, key=lambda place: place[0]):
            of_block = _decode_texts(isal_zlib.decompress(self.blocks[block]))
            for _, item, place in group:
                text = bytes(of_block[place])
                texts[item] = distinct.setdefault(text, text)
        return {item: text for item, text in texts.items() if text != _EMPTY}


def times_checksum(starts: Array, ends: Array) -> int:
    """Return a checksum of times, ns, in their order."""
    times = np.ascontiguousarray(np.array((starts, ends), dtype=np.int64))
    return int(isal_zlib.crc32(times))
