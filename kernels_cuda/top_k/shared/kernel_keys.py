"""The numbers by which plans know kernels: the position of its name in `NAMES`, then its parameters.

A name takes 6 bits, and each of up to five parameters 11, the first one lowest.
"""

NAMES = (
    "offsets",
    "clear",
    "by_index",
    "rounds",
    "shared_rounds",
    "partition",
    "one_pass",
    "sample",
    "list",
    "finish",
    "block",
    "cluster",
    "maxima",
    "transposed_maxima",
    "columns",
    "histogram",
    "keep",
    "sort",
    "copy",
    "transposed",
    "padding",
    "numbered",
    "codes",
    "order",
    "numbers",
    "digit",
    "selected",
    "indices",
    "result_sort",
    "lanes",
)
(
    OFFSETS,
    CLEAR,
    BY_INDEX,
    ROUNDS,
    SHARED_ROUNDS,
    PARTITION,
    ONE_PASS,
    SAMPLE,
    LIST,
    FINISH,
    BLOCK,
    CLUSTER,
    MAXIMA,
    TRANSPOSED_MAXIMA,
    COLUMNS,
    HISTOGRAM,
    KEEP,
    SORT,
    COPY,
    TRANSPOSED,
    PADDING,
    NUMBERED,
    CODES,
    ORDER,
    NUMBERS,
    DIGIT,
    SELECTED,
    INDICES,
    RESULT_SORT,
    LANES,
) = range(30)
NAME_BITS, PARAMETER_BITS = 6, 11
MOST_PARAMETERS = 5


def kernel_key(name: int, first: int, second: int, third: int) -> int:
    """Return the number of a kernel of up to three parameters; those that it does not have are 0.

    Examples
    --------
    >>> kernel_key(CLEAR, 0, 0, 0), kernel_key(COPY, 4, 0, 0)
    (1, 274)
    """
    parameters = ((third << PARAMETER_BITS | second) << PARAMETER_BITS) | first
    return parameters << NAME_BITS | name


def with_more(key: int, fourth: int, fifth: int) -> int:
    """Return the number of a kernel that has two parameters more."""
    more = fifth << PARAMETER_BITS | fourth
    return key | more << (NAME_BITS + 3 * PARAMETER_BITS)
