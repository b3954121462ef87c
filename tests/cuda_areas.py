"""The areas of a workspace that kernels read and write, from the arguments of a launch.

Each kernel's function yields ``(parameter, writes, first byte, bytes)``, where the first byte counts from the
address in the parameter. Only pointers into the workspace matter; `check_areas` leaves the others out.
"""

import importlib
import itertools
from typing import NamedTuple

_nonzero = importlib.import_module("kernels_cuda.nonzero_coordinates.parameters")
GRANULE = _nonzero.GRANULE
N_DIGITS = 256
FINE_PER_CHUNK = 32
WARPS = 8
VECTOR = 16


class Region(NamedTuple):
    """Bytes of the workspace that a launch may touch."""

    begin: int
    end: int
    writes: bool
    what: str
    area: int


def _key_bytes(launch):
    return max(4, launch.variant.parameters[0])


def _last_row(launch, n_rows, places):
    """Return where the last row of a layout begins, in elements; `places` are those of its strides."""
    inner_size, *strides = launch.layout
    outer, inner = (strides[place] for place in places)
    return (n_rows - 1) // inner_size * outer + (min(inner_size, n_rows) - 1) * inner


def _offsets(launch, n_rows):
    yield "offsets", False, 0, 32 * n_rows


def _add_dimension(launch):
    yield "offsets", True, 0, 32 * launch.n_rows
    if not launch.is_first:
        yield "offsets", False, 0, 32 * launch.n_rows


def _maxima(launch):
    first = launch.first * WARPS
    count, size = launch.grid * WARPS, _key_bytes(launch)
    fine = launch.coarse_chunks * FINE_PER_CHUNK * size
    yield "fine", True, first * fine, count * fine
    yield "coarse", True, first * size, count * size
    n_units = (launch.first + launch.grid) // launch.blocks_per_part
    yield from _offsets(launch, -(-n_units // launch.n_parts))


def _transposed_maxima(launch):
    count, size = launch.n_rows * launch.n_parts * launch.n_coarse, _key_bytes(launch)
    yield "fine", True, 0, count * FINE_PER_CHUNK * size
    yield "coarse", True, 0, count * size
    yield from _offsets(launch, launch.n_rows)


def _block(launch):
    size, key = launch.variant.parameters[0], _key_bytes(launch)
    n_units = launch.first + launch.grid
    n_rows = -(-n_units // launch.n_parts)
    yield "fine", False, 0, n_units * (launch.n_coarse << launch.coarse_bits) * VECTOR
    yield "coarse", False, 0, n_units * launch.n_coarse * key
    yield from _offsets(launch, n_rows)
    if launch.offsets:
        return
    # The last part of a row may be shorter than k.
    left = min(launch.k, launch.axis_size - (launch.n_parts - 1) * launch.part_size)
    places = (launch.n_parts - 1) * launch.k + left
    for name, stride, n_bytes, at in (
        ("values", launch.strides.values, size, (1, 5)),
        ("indices", launch.strides.indices, launch.index_size, (2, 6)),
    ):
        last = _last_row(launch, n_rows, at) + (places - 1) * stride
        yield name, True, 0, (last + 1) * n_bytes
    yield "sources", False, 0, n_rows * launch.axis_size * launch.source_size
    yield "x", False, 0, (_last_row(launch, n_rows, (0, 4)) + launch.axis_size) * size


def _columns(launch):
    size = launch.variant.parameters[0]
    yield from _offsets(launch, launch.n_rows)
    if launch.offsets:
        return
    for name, stride, n_bytes, at in (
        ("values", launch.strides.values, size, (1, 5)),
        ("indices", launch.strides.indices, launch.index_size, (2, 6)),
    ):
        last = _last_row(launch, launch.n_rows, at) + (launch.n_stacked * launch.k - 1) * stride
        yield name, True, 0, (last + 1) * n_bytes
    yield "sources", False, 0, launch.axis_size * launch.n_rows * launch.source_size
    last = _last_row(launch, launch.n_rows, (0, 4)) + (launch.axis_size - 1) * launch.strides.x
    yield "x", False, 0, (last + 1) * size


def _rows_only(launch):
    n_rows = launch.arguments.get("n_rows", launch.arguments.get("first", 0) + launch.grid // launch.cluster)
    yield from _offsets(launch, n_rows)


def _sample(launch):
    yield "states", True, 16 * launch.first, 16 * launch.grid
    yield from _offsets(launch, launch.n_rows)


def _list(launch):
    slots = launch.n_rows * launch.n_slots
    for writes in (False, True):
        yield "states", writes, 0, 16 * launch.n_rows
    yield "segments", True, 0, launch.n_rows * launch.n_segments * 8
    yield "elements", True, 0, slots * _key_bytes(launch)
    yield "lows", True, 0, slots * 4
    yield from _offsets(launch, launch.n_rows)


def _finish(launch):
    first, end = launch.first, launch.first + launch.grid
    yield "states", False, 16 * first, 16 * launch.grid
    for writes in (False, True):
        yield "segments", writes, 0, end * launch.n_segments * 8
    yield "listed", False, 0, end * launch.n_slots * _key_bytes(launch)
    yield "listed_lows", False, 0, end * launch.n_slots * 4
    yield from _offsets(launch, launch.n_rows)


def _clear(launch):
    yield "first", True, 0, VECTOR * launch.n_vectors


def _histogram(launch):
    n_rows = launch.grid // launch.blocks_per_row
    n_bytes = n_rows * launch.variant.parameters[0] * N_DIGITS * 8
    # It adds to what is there.
    yield "histograms", False, 0, n_bytes
    yield "histograms", True, 0, n_bytes
    yield from _offsets(launch, launch.first_row + n_rows)


def _sort(launch):
    size, position_size, *_ = launch.variant.parameters
    n_rows = launch.grid // launch.n_tiles
    n_bytes = n_rows * launch.axis_size * (8 if max(size, position_size) <= 4 else 16)
    yield "source", False, 0, n_bytes
    yield "destination", True, 0, n_bytes
    # The rows' histograms of all passes lie in turn.
    done = launch.shift // 8 * N_DIGITS * 8
    yield "histograms", False, -done, n_rows * size * N_DIGITS * 8
    for writes in (False, True):
        yield "states", writes, 0, n_rows * launch.n_tiles * N_DIGITS * position_size
        yield "next_tile", writes, 0, 4
    yield from _offsets(launch, launch.first_row + n_rows)


def _by_index(launch):
    n_parts, n_units = launch.n_parts, launch.first + launch.grid
    n_rows = -(-n_units // n_parts)
    # A row's threshold comes before the counts of its parts.
    yield "parts", launch.is_counting != 0, 0, (n_units + n_rows) * 8
    yield from _offsets(launch, n_rows)


def _mask(launch):
    n_elements = launch.grid * _nonzero.block_elements(launch.variant.parameters[0])
    assert launch.end <= n_elements
    yield "mask", True, 0, n_elements // 8
    yield "counts", True, 0, n_elements // GRANULE * 4


def _mask_strided(launch):
    assert launch.end <= launch.grid * GRANULE
    yield "mask", True, 0, launch.grid * GRANULE // 8
    yield "counts", True, 0, launch.grid * 4
    if launch.variant.parameters[1]:
        for name in ("multipliers", "shifts", "sizes", "strides"):
            yield name, False, 0, launch.n_dims * 8


def _mask_transposed(launch):
    n_matrices = launch.n_units // (launch.n_row_tiles * launch.n_word_tiles)
    yield "mask", True, 0, n_matrices * launch.height * launch.row_words * 4


def _count(launch):
    # It empties the rest of the last granule, too.
    yield "mask", False, 0, launch.n_words * 4
    yield "mask", True, 0, launch.grid * GRANULE // 8
    yield "counts", True, 0, launch.grid * 4


def _scan(launch):
    yield "counts", False, 0, launch.n_granules * 4
    yield "prefix", True, 0, launch.n_granules * 8 + 8


def _expand(launch):
    yield "mask", False, 0, launch.n_granules * GRANULE // 8
    yield "counts", False, 0, 0 if launch.prefix else launch.n_granules * 4
    yield "prefix", False, 0, launch.n_granules * 8 + 8


def _write_table(launch):
    yield "address", True, 0, launch.count * 8


def _wide_columns(launch):
    if launch.variant.parameters[-1]:
        for name in ("multipliers", "shifts", "sizes", "x_strides", "index_strides", "output_strides"):
            if name in launch.arguments:
                yield name, False, 0, launch.n_dims * 8
        for name in ("bounds", "coordinate_strides"):
            if name in launch.arguments:
                yield name, False, 0, launch.n_coordinates * 8


def _none(launch):
    return ()


KERNELS = {
    "top_k_offsets": _add_dimension,
    "top_k_maxima": _maxima,
    "top_k_transposed_maxima": _transposed_maxima,
    "top_k_block": _block,
    "top_k_columns": _columns,
    "top_k_rounds": _rows_only,
    "top_k_warp": _rows_only,
    "top_k_tile": _rows_only,
    "top_k_partition": _rows_only,
    "top_k_sample": _sample,
    "top_k_list": _list,
    "top_k_finish": _finish,
    "top_k_one_pass": _rows_only,
    "top_k_cluster": _rows_only,
    "top_k_clear": _clear,
    "top_k_histogram": _histogram,
    "top_k_sort": _sort,
    "top_k_by_index": _by_index,
    "top_k_reorder": _rows_only,
    "top_k_reorder_few": _rows_only,
    "nonzero_small": _none,
    "nonzero_mask": _mask,
    "nonzero_mask_strided": _mask_strided,
    "nonzero_mask_transposed": _mask_transposed,
    "nonzero_count": _count,
    "nonzero_scan": _scan,
    "nonzero_expand": _expand,
    "write_table": _write_table,
    "gather_units": _wide_columns,
    "gather_planar": _none,
    "gather_strided": _none,
    "gather_unaligned": _none,
    "diagonal_elements": _wide_columns,
    "diagonal_rows": _none,
    "diagonal_strided": _none,
    "diagonal_transposed": _none,
}


def regions_of(launch, workspace):
    """Return what a launch touches of a workspace at this address, counted from where that begins."""
    found = []
    for parameter, writes, first, n_bytes in KERNELS[launch.name](launch):
        at = launch.arguments[parameter] - workspace
        if n_bytes and 0 <= at < 1 << 57:
            begin, what = at + first, f"{launch.variant.label}.{parameter}"
            found.append(Region(begin, begin + n_bytes, writes, what, min(at, begin)))
    return found


def _covered(region, written):
    """Tell whether every byte of a region has been written."""
    at = region.begin
    for begin, end in sorted(written):
        if begin <= at < end:
            at = end
    return at >= region.end


def check_areas(planned):
    """Check that launches stay in the workspace, apart from each other, and read only what was written.

    Regions that begin at one place are the same area. Clearing covers several of these, and tables are
    written in pieces.
    """
    areas, written = {}, set()
    for launch in planned.asked:
        regions = regions_of(launch, planned.workspace)
        for region in regions:
            assert region.begin >= 0, region
            assert region.end <= planned.plan.workspace_size, (region, planned.plan.workspace_size)
            assert region.writes or _covered(region, written), f"{region} has not been written"
        if launch.name not in ("top_k_clear", "write_table"):
            for region in regions:
                areas[region.area] = max(areas.get(region.area, 0), region.end)
        for region in regions:
            clashes = [other for other in regions if other.what != region.what and _overlap(region, other)]
            assert not (region.writes and clashes), (region, clashes)
        written |= {(region.begin, region.end) for region in regions if region.writes}
    ordered = sorted(areas.items())
    for (begin, end), (following, _) in itertools.pairwise(ordered):
        assert end <= following, f"what begins at {begin} reaches {end}, beyond {following}"
    return len(areas)


def _overlap(one, other):
    return one.begin < other.end and other.begin < one.end
