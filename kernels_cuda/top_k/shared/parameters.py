"""The integers that kernels take besides addresses, by name: launches give them, kernels read them."""

from typing import NamedTuple

from kernels_cuda.top_k.problem import (
    AxisStrides,
    KeyFormat,
    LengthFormat,
    RowLayout,
    TableDimension,
    UnfoldedFormat,
)


class OffsetsParameters(NamedTuple):
    """Parameters of `rows.add_dimension`."""

    n_rows: int
    is_first: int
    dimension: TableDimension


class WarpParameters(NamedTuple):
    """Parameters of `warp.warp_top_k`."""

    index_size: int
    is_by_index: int
    first_block: int
    n_rows: int
    axis_size: int
    k: int
    strides: AxisStrides
    n_slots: int
    layout: RowLayout
    unfolded_format: UnfoldedFormat
    key_format: KeyFormat
    length_format: LengthFormat


class RoundsParameters(NamedTuple):
    """Parameters of `rounds.rounds_top_k`."""

    index_size: int
    is_sorted: int
    first_block: int
    n_rows: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    key_format: KeyFormat
    length_format: LengthFormat


class BlockParameters(NamedTuple):
    """Parameters of `block.block_top_k`.

    Attributes
    ----------
    source_size, index_size : int
        Bytes of an index in `sources` (0: there are none) and in `indices`.
    is_by_index : int
        Whether results are written by ascending position.
    first_block : int
        The part of a row that the first block takes.
    part_size, n_parts : int
        Elements of a part of a row, and how many parts a row has.
    top_stage, has_unit_groups : int
        Where the block begins: coarse maxima, fine maxima or elements; and whether each of these maxima is a
        group by itself.
    lane_bits, n_groups, enough_groups : int
        Bits of the vectors of a group in the first stage, for how many groups there is room, and among how
        many a threshold should be looked for.
    most_groups : int
        How many groups may be at or above the threshold.
    n_slots, n_candidate_groups, list_word, bins_word : int
        Candidates and groups for which there is room, and where the list of groups and the bins begin in
        shared memory, in words.
    n_coarse, coarse_bits, fine_bits : int
        Coarse groups of a part, and the bits of the vectors of a coarse group and of a fine one.
    n_together, n_staggered, stagger_nanoseconds : int
        Blocks that start together, blocks that start staggered, and the time from start to start.
    """

    source_size: int
    index_size: int
    is_by_index: int
    first_block: int
    axis_size: int
    part_size: int
    n_parts: int
    k: int
    strides: AxisStrides
    top_stage: int
    has_unit_groups: int
    lane_bits: int
    n_groups: int
    enough_groups: int
    most_groups: int
    n_slots: int
    n_candidate_groups: int
    list_word: int
    bins_word: int
    n_coarse: int
    coarse_bits: int
    fine_bits: int
    n_together: int
    n_staggered: int
    stagger_nanoseconds: int
    layout: RowLayout
    unfolded_format: UnfoldedFormat
    key_format: KeyFormat
    length_format: LengthFormat


class MaximaParameters(NamedTuple):
    """Parameters of `grid.group_maxima`: `blocks_per_part` blocks write the maxima of a part of a row."""

    first_block: int
    axis_size: int
    part_size: int
    n_parts: int
    blocks_per_part: int
    coarse_chunks: int
    x_stride: int
    layout: RowLayout
    unfolded_format: UnfoldedFormat
    length_format: LengthFormat


class TransposedMaximaParameters(NamedTuple):
    """Parameters of `grid.transposed_group_maxima`: a part of a row has `n_coarse` coarse groups."""

    first_block: int
    axis_size: int
    part_size: int
    n_parts: int
    n_rows: int
    n_coarse: int
    x_stride: int
    layout: RowLayout
    unfolded_format: UnfoldedFormat
    length_format: LengthFormat


class PartitionParameters(NamedTuple):
    """Parameters of `partition.partition_row`.

    `counters_offset` is where a block counts that sorts what is selected; it does not if that is 0.
    """

    index_size: int
    counters_offset: int
    first_row: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    key_format: KeyFormat
    length_format: LengthFormat


class ClusterParameters(NamedTuple):
    """Parameters of `cluster.cluster_top_k`.

    Attributes
    ----------
    first_row, cluster_bits : int
        The row of the first cluster, and the bits of the number of its blocks.
    step_bits : int
        The bits of the number of elements that a cluster reads in a step, a vector per thread.
    chunk_bits : int
        The bits of the number of selected elements that one block orders.
    is_few : int
        Whether k is small enough for few candidates.
    """

    index_size: int
    is_sorted: int
    is_few: int
    first_row: int
    cluster_bits: int
    step_bits: int
    chunk_bits: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    length_format: LengthFormat
    unfolded_format: UnfoldedFormat
    key_format: KeyFormat


class OnePassParameters(NamedTuple):
    """Parameters of `one_pass.one_pass_top_k`.

    Attributes
    ----------
    first_row : int
        The row of the first block.
    n_maxima : int
        Among how many maxima a block looks for a threshold.
    """

    index_size: int
    is_sorted: int
    first_row: int
    n_maxima: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    length_format: LengthFormat
    unfolded_format: UnfoldedFormat
    key_format: KeyFormat


class ColumnsParameters(NamedTuple):
    """Parameters of `columns.column_top_k`.

    Attributes
    ----------
    source_size, index_size : int
        Bytes of an index in `sources` (0: there are none) and in `indices`.
    n_column_blocks, n_stacked : int
        Blocks side by side, and blocks one above the other, which share columns.
    parts_per_block : int
        Warps of a block that share columns.
    n_slots, n_spare, position_offset : int
        Candidates for which a lane has room, how many more than k may stay, and where positions begin in
        shared memory.
    """

    source_size: int
    index_size: int
    n_column_blocks: int
    n_rows: int
    axis_size: int
    n_stacked: int
    parts_per_block: int
    k: int
    n_slots: int
    n_spare: int
    position_offset: int
    strides: AxisStrides
    layout: RowLayout
    unfolded_format: UnfoldedFormat
    key_format: KeyFormat
    length_format: LengthFormat


class TileParameters(NamedTuple):
    """Parameters of `tile.sort_row`."""

    index_size: int
    first_row: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    key_format: KeyFormat
    length_format: LengthFormat


class ClearParameters(NamedTuple):
    """Parameters of `sort.clear_words`."""

    n_vectors: int


class HistogramParameters(NamedTuple):
    """Parameters of `sort.digit_histograms`."""

    first_row: int
    axis_size: int
    blocks_per_row: int
    x_stride: int
    length_format: LengthFormat
    layout: RowLayout
    key_format: KeyFormat


class SortParameters(NamedTuple):
    """Parameters of `sort.sort_digit`, one pass over the digits at bit `shift`."""

    index_size: int
    first_row: int
    axis_size: int
    n_tiles: int
    k: int
    shift: int
    is_first: int
    is_last: int
    strides: AxisStrides
    length_format: LengthFormat
    layout: RowLayout
    key_format: KeyFormat


class ReorderParameters(NamedTuple):
    """Parameters of `reorder.reorder_few` and `reorder.reorder_many`; indices have `index_bits` bits."""

    element_size: int
    index_size: int
    index_bits: int
    first_row: int
    n_rows: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    length_format: LengthFormat


class ByIndexParameters(NamedTuple):
    """Parameters of `by_index.order_by_index`, whose blocks have one part of a row each."""

    index_size: int
    is_counting: int
    first_unit: int
    n_parts: int
    part_size: int
    axis_size: int
    k: int
    strides: AxisStrides
    layout: RowLayout
    key_format: KeyFormat
    length_format: LengthFormat


class SampledParameters(NamedTuple):
    """Parameters of the three kernels of `sampled`.

    Attributes
    ----------
    first_block : int
        The row, or the unit of rows and blocks for each, that the first block takes.
    sample_bits : int
        Of a number that a row's sample has elements, a power of two.
    n_slots, n_segments : int
        Candidates of a row for which there is room, and the most segments that a row has.
    n_listing : int
        Blocks that list the candidates of a row.
    candidate_words, counters_offset, selected_word : int
        Shared memory of the candidates, where a block that sorts those selected counts, and where the list of
        these begins.
    """

    index_size: int
    is_sorted: int
    first_block: int
    n_rows: int
    axis_size: int
    k: int
    sample_bits: int
    n_slots: int
    n_segments: int
    n_listing: int
    candidate_words: int
    counters_offset: int
    selected_word: int
    strides: AxisStrides
    layout: RowLayout
    unfolded_format: UnfoldedFormat
    key_format: KeyFormat
    length_format: LengthFormat
