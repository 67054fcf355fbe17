"""The weighted sum over a token's experts: shapes that every variant takes."""


def example_shapes(variant) -> tuple[tuple[int, ...], ...]:
    """Three tokens, two experts each, eight columns."""
    shapes = dict(y=(3, 2, 8), scores=(3, 2), addend=(3, 8), addend_scores=(3,), experts=(3, 2), experts_count=(1,))
    extras = [name for name in ("addend", "addend_scores") if variant.option(name, False)]
    return tuple(shapes[name] for name in ("y", "scores", *extras, "experts", "experts_count"))
