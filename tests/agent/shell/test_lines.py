"""Prefixes, line ends, broken UTF-8, and the tail of a stream."""

from horovod.agent.lines import LinePrefixer, Tail
from hypothesis import given
from hypothesis import strategies as st


def prefixed(*pieces: bytes) -> str:
    prefixer = LinePrefixer(lambda: "[0]<stdout>:")
    return (b"".join(prefixer.feed(piece) for piece in pieces) + prefixer.finish()).decode()


def test_each_line_gets_the_prefix() -> None:
    assert prefixed(b"one\ntwo\n") == "[0]<stdout>:one\n[0]<stdout>:two\n"


def test_an_empty_line_stays_a_line() -> None:
    assert prefixed(b"\n\n") == "[0]<stdout>:\n[0]<stdout>:\n"


def test_an_unfinished_line_waits_and_is_flushed_at_the_end() -> None:
    prefixer = LinePrefixer(lambda: "p:")
    assert prefixer.feed(b"half") == b""
    assert prefixer.feed(b" line") == b""
    assert prefixer.finish() == b"p:half line\n"
    assert prefixer.finish() == b""


def test_progress_bars_keep_their_carriage_returns() -> None:
    assert prefixed(b"\r 10%", b"\r 20%", b"\n") == "[0]<stdout>: 10%\r[0]<stdout>: 20%\n"


def test_a_windows_line_end_cut_in_two_is_one_line_end() -> None:
    assert prefixed(b"a\r", b"\nb\r\n") == "[0]<stdout>:a\r\n[0]<stdout>:b\r\n"


def test_a_character_cut_in_two_is_whole() -> None:
    data = "größe\n".encode()
    assert prefixed(data[:3], data[3:]) == "[0]<stdout>:größe\n"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert prefixed(b"a\xffb\n", b"\xc3") == "[0]<stdout>:a\ufffdb\n[0]<stdout>:\ufffd\n"


def test_other_unicode_separators_do_not_end_a_line() -> None:
    assert prefixed("a\u2028b\x0bc\n".encode()) == "[0]<stdout>:a\u2028b\x0bc\n"


def test_a_line_without_end_is_cut_so_that_memory_stays_bounded() -> None:
    prefixer = LinePrefixer(lambda: "p:")
    out = b"".join(prefixer.feed(b"x" * 65536) for _ in range(100)) + prefixer.finish()
    assert out.count(b"x") == 6553600
    assert all(line.startswith(b"p:") and len(line) < 400_000 for line in out.splitlines())
    assert len(out.splitlines()) > 10


@given(st.lists(st.text(alphabet="ab\u00e4\n\r", max_size=8)))
def test_how_a_stream_is_cut_does_not_matter(pieces: list[str]) -> None:
    data = [piece.encode() for piece in pieces]
    whole = b"".join(data)
    assert prefixed(*data) == prefixed(*[whole[i : i + 1] for i in range(len(whole))]) == prefixed(whole)


def test_the_tail_is_the_end_and_bounded() -> None:
    tail = Tail()
    for index in range(10_000):
        tail.feed(b"line %d\n" % index)
    lines = tail.text().splitlines()
    assert lines[-1] == "line 9999"
    assert len(lines) == 40


def test_the_tail_shows_the_last_state_of_a_line_that_was_overwritten() -> None:
    tail = Tail()
    tail.feed(b"\r1%\r2%\r3%\nTraceback\nValueError: no\r\n")
    assert tail.text() == "3%\nTraceback\nValueError: no"


def test_a_block_above_the_tails_size_keeps_its_end() -> None:
    tail = Tail()
    tail.feed(b"x" * 100_000 + b"\nlast")
    assert tail.text().splitlines()[-1] == "last"
