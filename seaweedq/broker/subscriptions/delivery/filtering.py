"""The filter of a subscription, over columns of rows. Pure.

A message that it leaves out counts as acked, without a frame in the journal: filter and rows never change, so that
after a crash the same messages are left out once more.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.broker.subscriptions.delivery.window import Array
from seaweedq.coordination.records.subscriptions import MessageFilter

FILTERED_ROWS = 65_536  # rows that one look at a subscription's segments filters at most


def left_out(wanted: MessageFilter, rows: pa.RecordBatch) -> Array:
    """Tells for each row whether the filter leaves it out: not all of its conditions hold."""
    kept = np.ones(rows.num_rows, bool)
    if wanted.key_prefix is not None:
        kept &= _of(rows, "_key", lambda keys: pc.starts_with(keys, wanted.key_prefix))
    for name, value in wanted.headers.items():
        kept &= _of(rows, "_headers", partial(_has, name, value))
    return ~kept


def _has(name: str, value: str, headers: pa.Array) -> pa.Array:
    return pc.equal(pc.map_lookup(headers, name, "first"), value)


def _of(rows: pa.RecordBatch, name: str, condition: Callable[[pa.Array], pa.Array]) -> Array:
    """Returns a condition over a column; it holds for no row that has no value there."""
    at = rows.schema.get_field_index(name)
    if at < 0:
        return np.zeros(rows.num_rows, bool)
    found: Array = condition(rows.column(at)).fill_null(False).to_numpy(zero_copy_only=False)
    return found
