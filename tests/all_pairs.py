"""Fewer cases than a full product, in which any two values of different parameters still meet."""

from itertools import combinations, product


def all_pairs(*parameters, keep=()):
    """Rows of values, for ``pytest.mark.parametrize``.

    The first ones are the corners, which have the first, or the last, value of every parameter, and those to ``keep``.
    Then follows, again and again, the row with the most pairs that no row before it has.

    >>> all_pairs("ab", "xy", [1, 2])
    [('a', 'x', 1), ('b', 'y', 2), ('a', 'x', 2), ('a', 'y', 1), ('b', 'x', 1)]
    """
    parameters = [list(values) for values in parameters]
    rows = [tuple(0 for _ in parameters), tuple(len(values) - 1 for values in parameters)]
    rows += [tuple(values.index(value) for values, value in zip(parameters, row, strict=True)) for row in keep]
    left = list(product(*(range(len(values)) for values in parameters)))

    def pairs(row):
        return set(combinations(enumerate(row), 2))

    missing = set().union(*map(pairs, left)).difference(*map(pairs, rows))
    while missing:
        rows.append(max(left, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(rows[-1])
    return [tuple(values[i] for values, i in zip(parameters, row, strict=True)) for row in dict.fromkeys(rows)]
