"""What the filters in a stream's chunks really do, to compare a prediction with."""

from typing import NamedTuple

import numpy as np

from segments.codec import CHUNK_HEADER_SIZE
from segments.spark import headers as columns
from segments.spark.files import read_headers
from segments.spark.history import read_history
from segments.spark.plan import ChunkCriteria, pieces
from segments.spark.replay import CHUNK_BYTES, Workload
from segments.spark.screen import filter_says
from segments.spark.streams import find_streams


class Observed(NamedTuple):
    """What was found.

    Attributes:
        false_positive_rate: share of the looks at chunks without the wanted value that deliver.
        stored_bytes: filters, headers, trailers and indexes.
        delivered_bytes: of the messages of chunks that readers get.
    """

    chunks: int
    messages: int
    false_positive_rate: float
    stored_bytes: int
    delivered_bytes: float


def observe(path: str, workload: Workload, from_offset: int = 0) -> Observed:
    """Test the filters as they stand in the headers with every value of a workload.

    Args:
        path: as `find_streams` takes it.
        workload: what is subscribed to, its values as trailers record them.
        from_offset: chunks before it are left out.

    Raises:
        NotAStream: there is no stream.
    """
    stream = find_streams(path)[0]
    wanted = ChunkCriteria(start_offset=from_offset)
    chunks = messages = stored = 0
    negatives = positives = delivered = 0.0
    weights = np.array(workload.weights)
    for listing in stream.listings(wanted.bounds):
        for piece in pieces(stream.name, [listing], wanted):
            positions = piece.positions
            headers = read_headers(piece.file, positions)
            holds = np.zeros((len(workload.values), len(positions)), np.bool_)
            first = 0
            for history in read_history(piece, 0, None):
                place = {name: n for n, name in enumerate(history.names)}
                for n, value in enumerate(workload.values):
                    mine = history.values == place.get(value, -1)
                    holds[n, first + history.chunks[mine]] = True
                first += len(history.records)
            says = np.array(
                [
                    filter_says(piece.file, positions, headers, value, held)
                    for value, held in zip(workload.values, holds, strict=True)
                ]
            )
            negatives += float(weights @ ~holds @ np.ones(len(positions)))
            positives += float(weights @ (says & ~holds) @ np.ones(len(positions)))
            delivered += float(weights @ says @ headers["data_size"].astype(np.float64))
            chunks += len(positions)
            messages += int(headers["num_records"].sum())
            overhead = columns.total_sizes(headers) - headers["data_size"]
            stored += int(overhead.sum()) + len(positions) * (CHUNK_BYTES - CHUNK_HEADER_SIZE)
    rate = positives / negatives if negatives else 0.0
    return Observed(chunks, messages, rate, stored, delivered)
