"""Lines and tables that fit any width."""

from __future__ import annotations

from router.commands.top.lines import Column, Line, Look, Span, apart, fitted, line, span, table, width_of

ROWS = [("demo-r0", "ready", "12"), ("demo-r1", "drains", "3")]
COLUMNS: list[Column[tuple[str, str, str]]] = [
    Column("NAME", lambda row: span(row[0]), left=True),
    Column("STATE", lambda row: span(row[1], Look.GOOD), 2, left=True),
    Column("RUN", lambda row: span(row[2]), 1),
]


def text(made: Line) -> str:
    return "".join(part.text for part in made)


def test_a_table_lines_up_words_to_the_left_and_numbers_to_the_right() -> None:
    assert ["NAME     STATE   RUN", "demo-r0  ready    12", "demo-r1  drains    3"] == [
        text(each) for each in table(COLUMNS, ROWS, None)
    ]


def test_columns_of_the_highest_rank_go_first_where_there_is_no_room() -> None:
    assert "NAME     RUN" == text(table(COLUMNS, ROWS, 19)[0])
    assert "NAME   " == text(table(COLUMNS, ROWS, 9)[0])


def test_a_column_of_rank_0_stays_and_is_cut_in_the_end() -> None:
    assert ["NAM~", "dem~", "dem~"] == [text(each)[:4] for each in table(COLUMNS, ROWS, 4)]


def test_words_beyond_the_most_characters_of_a_column_are_cut() -> None:
    short: list[Column[str]] = [Column("NAME", span, left=True, most=6)]
    assert "a-ver~" == text(table(short, ["a-very-long-name"], None)[1])


def test_wide_characters_count_as_two_cells() -> None:
    assert 4 == width_of(line("模型"))
    assert 4 >= width_of(fitted(line("模型模型"), 4))


def test_names_of_others_cannot_move_the_cursor() -> None:
    assert "a?[2Jb?" == span("a\x1b[2Jb\n").text


def test_the_end_of_a_line_keeps_its_place_and_the_beginning_is_cut() -> None:
    made = apart(line("a long beginning"), line("end"), 12)
    assert ("a long ~ end", 12) == (text(made), width_of(made))


def test_a_cut_line_keeps_the_meaning_of_its_parts() -> None:
    assert (Span("ab", Look.BAD), Span("~")) == fitted((Span("ab", Look.BAD), Span("cdef")), 3)
