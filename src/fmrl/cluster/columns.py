"""The columns of one block as a Parquet file, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fmrl.files import atomic, from_json


def write_block(path: Path, columns: dict[str, Any], about: dict[str, Any]) -> int:
    """Write columns: [n] as plain values, [n, d] as lists of fixed size, (values, offsets) as
    ragged lists. Bytes written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: _column(pa, values) for name, values in columns.items()})
    table = table.replace_schema_metadata({"fmrl": json.dumps(about)})
    # Floats neither compress nor repeat; the checksums let a resumed run notice a damaged block.
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with atomic(path) as partial:
        pq.write_table(table, partial, write_page_checksum=True, **options)
        return partial.stat().st_size


def read_block(
    path: Path, names: list[str] | None = None, run: str | None = None
) -> dict[str, Any] | None:
    """The columns of a finished block; None when there is none, a damaged one, or one of another
    ``run``: it is then made again.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(
            path, columns=names, partitioning=None, page_checksum_verification=True
        )
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError):
        path.unlink(missing_ok=True)
        return None
    try:
        made = from_json((table.schema.metadata or {}).get(b"fmrl", b"{}"))
    except ValueError:
        made = {}
    if run is not None and made.get("run") != run:
        return None
    return {name: _values(pa, table[name]) for name in table.column_names}


def block_about(path: Path) -> dict[str, Any]:
    """What made a block."""
    import pyarrow.parquet as pq

    return from_json(pq.read_schema(path).metadata[b"fmrl"])


def _column(pa: Any, values: Any) -> Any:
    if isinstance(values, tuple):
        return pa.LargeListArray.from_arrays(pa.array(values[1], pa.int64()), pa.array(values[0]))
    if values.ndim == 2:
        flat = pa.array(np.ascontiguousarray(values).ravel())
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.array(values)


def _values(pa: Any, column: Any) -> Any:
    whole = column.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    if pa.types.is_fixed_size_list(whole.type):
        return whole.flatten().to_numpy().reshape(-1, whole.type.list_size)
    if pa.types.is_large_list(whole.type):
        return whole.flatten().to_numpy(), whole.offsets.to_numpy()
    return whole.to_numpy(zero_copy_only=False)
