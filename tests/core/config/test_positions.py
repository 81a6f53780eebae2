from __future__ import annotations

from rhymed.core.config.load import key_lines, line_of

TEXT = """\
top = 1
[a] # a comment with key = value
x = 1
"y z" = 2
n.m = 3
text = '''
x = not a key
[nor.a.section]
'''
list = [
  1, # two
]
[[b.c]]
k = 1
[[b.c]]
k = 2
[b.c.args]
deep = 1
"""


def test_every_key_has_its_line() -> None:
    assert key_lines(TEXT) == {
        ("top",): 1,
        ("a",): 2,
        ("a", "x"): 3,
        ("a", "y z"): 4,
        ("a", "n"): 5,
        ("a", "n", "m"): 5,
        ("a", "text"): 6,
        ("a", "list"): 10,
        ("b", "c"): 13,
        ("b", "c", 0): 13,
        ("b", "c", 0, "k"): 14,
        ("b", "c", 1): 15,
        ("b", "c", 1, "k"): 16,
        ("b", "c", 1, "args"): 17,
        ("b", "c", 1, "args", "deep"): 18,
    }


def test_a_key_that_is_not_there_stands_where_what_contains_it_does() -> None:
    lines = key_lines(TEXT)
    assert line_of(("a", "list", 0), lines) == 10
    assert line_of(("b", "c", 1, "name"), lines) == 15
    assert line_of(("nowhere", "x"), lines) is None
