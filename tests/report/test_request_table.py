"""Request table: rows, texts and combinations by pencil, and the frame that Python code gets."""

import numpy as np

from locust_llm.report.request_table import RequestTable, TextColumn, number_combinations


def make_table() -> RequestTable:
    return RequestTable(
        {
            "ttft_s": np.array([0.5, np.nan, 0.25], np.float32),
            "model": TextColumn(np.array([1, -1, 0], np.int8), ["a", "b"]),
        }
    )


def test_rows_keep_their_numbers_in_the_whole_table() -> None:
    table = make_table()
    some = table.rows(np.array([False, True, True]))
    assert len(some) == 2
    assert some.numbers.tolist() == [1, 2]
    assert some.texts("model").tolist() == [None, "a"]
    assert some.rows(np.array([1])).numbers.tolist() == [2]
    assert some.rows(np.array([1])).floats("ttft_s").tolist() == [0.25]


def test_extremes_are_of_the_known_values() -> None:
    table = make_table()
    assert (table.earliest("ttft_s"), table.latest("ttft_s")) == (0.25, 0.5)
    assert np.isnan(table.rows(np.array([1])).earliest("ttft_s"))
    assert np.isnan(table.rows(np.zeros(3, np.bool_)).latest("ttft_s"))


def test_a_row_without_a_text_has_none_of_them() -> None:
    table = make_table()
    assert table.has("model", "b", "c").tolist() == [True, False, False]
    assert (~table.has("model", "b")).tolist() == [False, True, True]
    assert table.texts("model").select(lambda text: text is None).tolist() == [False, True, False]


def test_texts_are_counted_as_far_as_some_row_has_them() -> None:
    texts = make_table().texts("model")
    assert texts.count_rows() == {"a": 1, "b": 1}
    assert texts.rows(np.array([0, 0, 1])).count_rows() == {"b": 2}


def test_further_columns_leave_the_table_as_it_was() -> None:
    table = make_table()
    wider = table.replace_columns({"share": np.array([1.0, 0.5, 0.0])})
    assert "share" in wider
    assert "share" not in table


def test_combinations_have_the_order_of_their_codes() -> None:
    """(1, 0), (0, 2), (1, 0), unknown, (0, 0): three different ones."""
    one, two = np.array([1, 0, 1, -1, 0]), np.array([0, 2, 0, 1, 0])
    which, first_rows = number_combinations([one, two])
    assert which.tolist() == [2, 1, 2, -1, 0]
    assert first_rows.tolist() == [4, 1, 0]


def test_codes_of_few_bytes_do_not_overflow() -> None:
    codes = np.array([100, 100, 99], np.int8)
    which, _ = number_combinations([codes, codes, codes])
    assert which.tolist() == [1, 1, 0]


def test_nothing_has_no_combinations() -> None:
    which, first_rows = number_combinations([np.empty(0, np.int8)])
    assert (len(which), len(first_rows)) == (0, 0)


def test_the_frame_has_texts_as_categories() -> None:
    frame = make_table().to_frame()
    assert frame["model"].isna().tolist() == [False, True, False]
    assert frame["model"].cat.categories.tolist() == ["a", "b"]
    assert frame["ttft_s"].dtype == np.float32
