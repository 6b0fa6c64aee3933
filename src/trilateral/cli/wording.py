"""Numbers as people write them."""


def duration(seconds: float) -> str:
    """Return seconds in the units that fit."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def decimal(value: float, decimals: int) -> str:
    """Return a number with so many decimals, or in scientific notation if it is huge, as a diverging loss may be."""
    return f"{value:.{decimals}f}" if abs(value) < 1e6 else f"{value:.{decimals}g}"
