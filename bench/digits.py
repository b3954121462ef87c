"""Format ratios and times."""


def ratio(number: float) -> str:
    """Return a ratio without more digits than a measurement has.

    Examples
    --------
    >>> [ratio(number) for number in (0.00123, 0.1, 0.9512, 9.99, 9.996, 24.23, 99.94, 99.96, 5123.4)]
    ['0.0012', '0.10', '0.95', '9.99', '10.0', '24.2', '99.9', '100', '5,100']
    """
    if number >= 99.95:
        return f"{float(f'{number:.2g}'):,.0f}"
    if number >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"


def times(number: float) -> str:
    """Return a ratio with the sign of multiplication.

    Examples
    --------
    >>> times(5123.4)
    '5,100 x'
    """
    return f"{ratio(number)} x"


def three_digits(number: float) -> str:
    """Return a number with three significant digits, or all digits before the point.

    Examples
    --------
    >>> [three_digits(number) for number in (0.00456, 5, 12.34, 99.96, 999.6, 1014.1)]
    ['0.00456', '5.00', '12.3', '100', '1000', '1014']
    """
    return f"{number:#.3g}".rstrip(".") if number < 999.5 else f"{number:.0f}"
