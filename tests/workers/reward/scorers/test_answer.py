import pytest

from rhymed.core.errors import RewardError
from rhymed_workers.reward.scorers.answer import (
    equal,
    extract,
    ground_truth,
    last_number,
    normal,
    number,
    reference,
    reference_text,
    references,
)


def test_full_leaves_the_text_untouched() -> None:
    assert extract("  all of it \n", "full") == "  all of it \n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>4</answer>", "4"),
        ("<answer>3</answer> no, <answer>\n 4 \n</answer>.", "4"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<answer>cut off", ""),
        ("none", ""),
        ("<answer></answer>", ""),
    ],
)
def test_tag_takes_the_last_complete_one(text: str, answer: str) -> None:
    assert extract(text, "tag") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It costs $1,234.50.", "1234.50"),
        ("so x = -7", "-7"),
        ("so x = \u22127", "-7"),
        ("10-5", "5"),
        ("3 apples, 4 pears, 42.", "42"),
        (".5 of it", ".5"),
        ("6.02e23 per mole", "6.02e23"),
        ("50%", "50"),
        ("GPT2 and v1", ""),
        ("1,2", "2"),
        ("", ""),
    ],
)
def test_last_number(text: str, answer: str) -> None:
    assert last_number(text) == answer
    assert extract(text, "last_number") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{42}", "42"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\fbox{7}", "7"),
        (r"so \boxed 5.", "5"),
        (r"first \boxed{3}, then \boxed{\frac{1}{", "3"),
        (r"\boxed{", ""),
        ("none", ""),
        ("\\boxed{3\\", ""),
    ],
)
def test_boxed_balances_braces(text: str, answer: str) -> None:
    assert extract(text, "boxed") == answer


def test_reference_is_verls_or_a_usual_column_or_the_named_one() -> None:
    assert reference({"reward_model": {"ground_truth": "4"}, "answer": "5"}) == "4"
    assert reference({"prompt": "q", "solution": "6"}) == "6"
    assert reference({"key": 7, "answer": "5"}, "key") == 7
    with pytest.raises(RewardError, match=r"no reference answer.*columns: prompt, note"):
        reference({"prompt": "q", "note": ""})
    with pytest.raises(RewardError, match="no column 'kye'"):
        reference({"key": 7}, "kye")


def test_reference_text_reads_gsm8k() -> None:
    assert reference_text({"answer": "48 / 2 = 24\n#### 72"}) == "72"
    assert reference_text({"answer": 72}) == "72"
    with pytest.raises(RewardError, match="empty"):
        reference_text({"answer": " "})
    with pytest.raises(RewardError, match="not dict"):
        reference_text({"answer": {}})


def test_normal_writes_numbers_without_separators_and_blanks_once() -> None:
    assert [normal(text) for text in (" 1,234.50 ", "+7", "a\n b", "1,2", "1,234 cats")] == [
        "1234.50", "7", "a b", "1,2", "1,234 cats",
    ]  # fmt: skip


def test_ground_truth_is_gsm8ks_number_unless_it_was_prepared() -> None:
    assert ground_truth({"answer": "so\n#### 1,080"}) == "1080"
    assert ground_truth({"answer": "so\n#### x = 2"}) == "x = 2"
    assert ground_truth({"reward_model": {"ground_truth": "#### 1,080"}}) == "#### 1,080"
    assert ground_truth({"answer": ["4", "four"]}) == ["4", "four"]


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("5", "5.0"),
        ("5.00", "5"),
        ("3.0", "3"),
        ("$1,234.50", "1234.5"),
        ("-$5", "-5"),
        ("1e3", "1000"),
        ("\uff15", "5"),
        ("\uff11\uff0c\uff12\uff13\uff14", "1234"),
        ("\u22127", "-7"),
        (" two  words", "two words"),
        ("1e999999999", "1e999999999"),
    ],
)
def test_numbers_are_equal_by_value(answer: str, right: str) -> None:
    assert equal(answer, right)
    assert equal(right, answer)


@pytest.mark.parametrize(
    ("answer", "other"),
    [("5", "5.1"), ("5", "five"), ("1,2", "12"), ("2026-11-27", "2026"), ("", "0"), ("5" * 500, "5" * 500 + ".0")],
)
def test_other_numbers_and_texts_are_not(answer: str, other: str) -> None:
    assert not equal(answer, other)


def test_what_is_no_number() -> None:
    assert [number(text) for text in ("", "$", "-", "1 2", "nan", "inf", "1,2", "x1")] == [None] * 8


def test_references_may_be_several() -> None:
    assert references({"answer": ["a", 2, "so #### 3"]}) == ["a", "2", "3"]
    assert references({"reward_model": {"ground_truth": {"target": ["x", "y"]}}}) == ["x", "y"]
    assert references({"answer": {"target": "x"}}) == ["x"]
    for wrong, message in (([], "is empty"), (["a", ""], "is empty"), ([["a"]], "not list"), ({"a": 1}, "not dict")):
        with pytest.raises(RewardError, match=message):
            references({"answer": wrong})
