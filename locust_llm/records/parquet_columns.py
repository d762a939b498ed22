"""Parquet columns: a table of typed columns as one Parquet file, and back, with the standard
library alone.

A subset of https://parquet.apache.org/docs/file-format: one row group, data pages of version 1,
gzip. Numbers are split by bytes (BYTE_STREAM_SPLIT), as the high bytes of neighbours are alike;
texts have a dictionary unless all differ. What pyarrow, pandas, DuckDB and Polars read is written;
only what is written here is read here. numpy can take the arrays without a copy.
"""

import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

from .thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftField,
    ThriftList,
    decode_struct,
    decode_varint,
    encode_struct,
    encode_varint,
)

ColumnKind = Literal["double", "int", "flag", "text", "list"]
"""``list``: a list of whole numbers in each row."""

MAGIC: Final = b"PAR1"
CREATOR: Final = b"locust-llm"
LIST_PAGE_ROWS: Final = 256
"""A page of lists has so many rows, so that no page takes long to compress, and that some rows can
be read without the others."""
MAX_PAGE_VALUES: Final = 1 << 28
"""No page has more values: a part is complete before."""
_BOOLEAN: Final = 0
_INT32: Final = 1
_INT64: Final = 2
_DOUBLE: Final = 5
_BYTE_ARRAY: Final = 6
_PLAIN: Final = 0
_RLE: Final = 3
_RLE_DICTIONARY: Final = 8
_BYTE_STREAM_SPLIT: Final = 9
_REQUIRED: Final = 0
_OPTIONAL: Final = 1
_REPEATED: Final = 2
_UTF8: Final = 0
_GZIP: Final = 2
_DATA_PAGE: Final = 0
_DICTIONARY_PAGE: Final = 2
_HEADER_OF_PAGE: Final = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7}
"""The field of a page's own header in the head of each kind of page."""
_GZIP_WINDOW: Final = 31
"""zlib's number for the gzip frame, whose checksum finds damage."""
_TO_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")
_FROM_DIGITS: Final = bytes.maketrans(b"01", b"\0\1")
_MOST_CODES: Final = {"B": 2**8, "H": 2**16, "I": 2**32}
"""The types of the arrays of codes, and how many codes they hold."""
_WIDTHS: Final = {_DOUBLE: ("d", 8), _INT64: ("q", 8), _INT32: ("i", 4)}


class ParquetColumn(NamedTuple):
    """A column with its values packed: those that are there, one behind the other."""

    name: str
    kind: ColumnKind
    values: Any
    """An array of doubles (``d``) or of whole numbers (``q``, from a file also ``i``), bytes of 0
    and 1 for flags, and for texts an array of their places in ``labels``."""
    present: bytes | None = None
    """A byte for each row: 1 where it has a value. None: each row has one, or it has lists."""
    lengths: Sequence[int] = ()
    """The lengths of the lists."""
    labels: Sequence[str] = ()
    """The different texts."""


# -- writing ---------------------------------------------------------------------------------------


class _Chunk(NamedTuple):
    """A written column in the footer's words."""

    element: bytes
    metadata: bytes
    raw_bytes: int


def format_parquet(
    columns: Iterator[ParquetColumn], rows: int, metadata: Mapping[str, str]
) -> Iterator[bytes]:
    """The file in pieces of about a millisecond's work each."""
    yield MAGIC
    at = len(MAGIC)
    chunks = []
    for column in columns:
        begin, raw_bytes, count = at, 0, 0
        dictionary = _PLAIN
        physical, encoding = _choose_types(column)
        if encoding == _RLE_DICTIONARY:
            dictionary = at
            page, raw = _format_page(
                _plain_texts(column.labels),
                zlib.Z_DEFAULT_STRATEGY,
                _DICTIONARY_PAGE,
                [_i32(1, len(column.labels)), _i32(2, _PLAIN)],
            )
            yield page
            at += len(page)
            raw_bytes += raw
        data_at = at
        for body, values in _list_bodies(column, physical, encoding, rows):
            page, raw = _format_page(
                body,
                zlib.Z_RLE if encoding == _BYTE_STREAM_SPLIT else zlib.Z_DEFAULT_STRATEGY,
                _DATA_PAGE,
                [_i32(1, values), _i32(2, encoding), _i32(3, _RLE), _i32(4, _RLE)],
            )
            yield page
            at += len(page)
            raw_bytes += raw
            count += values
        chunks.append(
            _describe_chunk(
                column, physical, encoding, count, raw_bytes, begin, at, data_at, dictionary
            )
        )
    footer = _format_footer(chunks, rows, at, metadata)
    yield footer + len(footer).to_bytes(4, "little") + MAGIC


def _choose_types(column: ParquetColumn) -> tuple[int, int]:
    """(physical type, encoding of its values)."""
    if column.kind == "flag":
        return _BOOLEAN, _PLAIN
    if column.kind == "text":
        differ = len(column.labels) == len(column.values)
        return _BYTE_ARRAY, _PLAIN if differ else _RLE_DICTIONARY
    if column.kind == "double":
        return _DOUBLE, _BYTE_STREAM_SPLIT
    small = column.kind == "list" and _fits_32_bits(column.values)
    return _INT32 if small else _INT64, _BYTE_STREAM_SPLIT


def _fits_32_bits(values: "array[int]") -> bool:
    """Whether all are from 0 to below 2^31: ten times as fast as ``max``."""
    raw = values.tobytes()
    high = (raw[byte::8] for byte in range(4, 8))
    return raw[3::8].isascii() and not any(map(any, high))


def _list_bodies(
    column: ParquetColumn, physical: int, encoding: int, rows: int
) -> Iterator[tuple[bytes, int]]:
    """(content of each data page, number of its values and gaps)."""
    if column.kind != "list":
        levels = b"" if column.present is None else _pack_levels(column.present)
        yield levels + _pack_values(column, column.values, physical, encoding), rows
        return
    at = 0
    for first in range(0, rows, LIST_PAGE_ROWS):
        lengths = column.lengths[first : first + LIST_PAGE_ROWS]
        total = sum(lengths)
        begins = b"".join([b"\0" + b"\1" * (length - 1) for length in lengths])
        filled = b"".join([b"\1" * length or b"\0" for length in lengths])
        values = column.values[at : at + total]
        at += total
        packed = _pack_values(column, values, physical, encoding)
        yield _pack_levels(begins) + _pack_levels(filled) + packed, len(filled)


def _pack_values(column: ParquetColumn, values: Any, physical: int, encoding: int) -> bytes:
    if column.kind == "flag":
        return _pack_bits(values)
    if column.kind == "text":
        return (
            _plain_texts(column.labels)
            if encoding == _PLAIN
            else _pack_codes(values, len(column.labels))
        )
    raw = values.tobytes()
    # of a number below 2^31 the low half is enough
    return b"".join([raw[byte :: values.itemsize] for byte in range(_WIDTHS[physical][1])])


def _plain_texts(texts: Sequence[str]) -> bytes:
    pieces: list[bytes] = []
    for text in texts:
        encoded = text.encode("utf-8", "replace")
        pieces += (len(encoded).to_bytes(4, "little"), encoded)
    return b"".join(pieces)


def _pack_codes(codes: "array[int]", labels: int) -> bytes:
    """A byte with the bits of a code, and one run."""
    kind = next(kind for kind, most in _MOST_CODES.items() if labels <= most)
    if labels <= 1:
        return bytes([8]) + encode_varint(len(codes) << 1) + b"\0"
    packed = array(kind, codes)
    packed.extend([0] * (-len(codes) % 8))
    return (
        bytes([8 * packed.itemsize]) + encode_varint(len(packed) // 8 << 1 | 1) + packed.tobytes()
    )


def _pack_levels(flags: bytes) -> bytes:
    count = len(flags)
    ones = flags.count(1)
    if ones in (0, count):
        run = encode_varint(count << 1) + bytes([ones > 0])
    else:
        run = encode_varint((count + 7) // 8 << 1 | 1) + _pack_bits(flags)
    return len(run).to_bytes(4, "little") + run


def _pack_bits(flags: bytes) -> bytes:
    """The first flag in the lowest bit."""
    if not flags:
        return b""
    return int(flags[::-1].translate(_TO_DIGITS), 2).to_bytes((len(flags) + 7) // 8, "little")


def _format_page(
    body: bytes, strategy: int, kind: int, header: Sequence[ThriftField]
) -> tuple[bytes, int]:
    """(page with its header, bytes before the compression)."""
    squeeze = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW, zlib.DEF_MEM_LEVEL, strategy)
    packed = squeeze.compress(body) + squeeze.flush()
    head = encode_struct(
        [
            _i32(1, kind),
            _i32(2, len(body)),
            _i32(3, len(packed)),
            ThriftField(_HEADER_OF_PAGE[kind], STRUCT, encode_struct(header)),
        ]
    )
    return head + packed, len(head) + len(body)


def _describe_chunk(
    column: ParquetColumn,
    physical: int,
    encoding: int,
    count: int,
    raw_bytes: int,
    begin: int,
    end: int,
    data_at: int,
    dictionary_at: int,
) -> _Chunk:
    name = column.name.encode()
    repetition = _REQUIRED if column.present is None else _OPTIONAL
    if column.kind == "list":
        repetition = _REPEATED
    element = [_i32(1, physical), _i32(3, repetition), ThriftField(4, BINARY, name)]
    if column.kind == "text":
        element.append(_i32(6, _UTF8))
    fields = [
        _i32(1, physical),
        ThriftField(2, LIST, ThriftList(I32, [_RLE, encoding])),
        ThriftField(3, LIST, ThriftList(BINARY, [name])),
        _i32(4, _GZIP),
        _i64(5, count),
        _i64(6, raw_bytes),
        _i64(7, end - begin),
        _i64(9, data_at),
    ]
    if dictionary_at:
        fields.append(_i64(11, dictionary_at))
    chunk = [_i64(2, begin), ThriftField(3, STRUCT, encode_struct(fields))]
    return _Chunk(encode_struct(element), encode_struct(chunk), raw_bytes)


def _format_footer(
    chunks: Sequence[_Chunk], rows: int, size: int, metadata: Mapping[str, str]
) -> bytes:
    root = encode_struct([ThriftField(4, BINARY, b"record"), _i32(5, len(chunks))])
    group = encode_struct(
        [
            ThriftField(1, LIST, ThriftList(STRUCT, [chunk.metadata for chunk in chunks])),
            _i64(2, sum(chunk.raw_bytes for chunk in chunks)),
            _i64(3, rows),
        ]
    )
    pairs = [
        encode_struct(
            [ThriftField(1, BINARY, key.encode()), ThriftField(2, BINARY, value.encode())]
        )
        for key, value in metadata.items()
    ]
    schema = [root, *(chunk.element for chunk in chunks)]
    return encode_struct(
        [
            _i32(1, 2),
            ThriftField(2, LIST, ThriftList(STRUCT, schema)),
            _i64(3, rows),
            ThriftField(4, LIST, ThriftList(STRUCT, [group])),
            ThriftField(5, LIST, ThriftList(STRUCT, pairs)),
            ThriftField(6, BINARY, CREATOR),
        ]
    )


def _i32(number: int, value: int) -> ThriftField:
    return ThriftField(number, I32, value)


def _i64(number: int, value: int) -> ThriftField:
    return ThriftField(number, I64, value)


# -- reading ---------------------------------------------------------------------------------------


class PageDecoder:
    """Turns the content of pages into arrays, with the standard library."""

    def unpack_bits(self, data: bytes, count: int) -> bytes:
        """A byte for each bit, the lowest one first. Missing bits are 0."""
        if not count:
            return b""
        digits = f"{int.from_bytes(data, 'little'):0{count}b}".encode()
        return digits[: -count - 1 : -1].translate(_FROM_DIGITS)

    def join_bytes(self, data: bytes, kind: str, width: int) -> Any:
        """The numbers of a page: all their lowest bytes come first, and so on."""
        count = len(data) // width
        raw = bytearray(len(data))
        for byte in range(width):
            raw[byte::width] = data[byte * count : (byte + 1) * count]
        values = array(kind)
        values.frombytes(raw)
        return values

    def measure_lists(self, begins: bytes, filled: bytes) -> Any:
        """The lengths of lists. Each begins with a 0 in ``begins``. An empty one has a 0 in
        ``filled`` too."""
        lengths = array("i")
        at = 0
        for further in begins.split(b"\0")[1:]:
            lengths.append(len(further) + 1 if filled[at] else 0)
            at += len(further) + 1
        return lengths

    def join_pages(self, pages: Sequence[Any]) -> Any:
        """The arrays of some pages as one."""
        joined = array(pages[0].typecode)
        for page in pages:
            joined.extend(page)
        return joined


_STANDARD: Final = PageDecoder()


class ParquetTable:
    """The columns of a file that ``format_parquet`` made. Raises ValueError for other files, and
    for damaged ones when their columns are read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._read: dict[str, ParquetColumn] = {}
        self._pages: dict[str, list[int]] = {}
        """Where the pages of lists begin, as far as it is known."""
        try:
            size = int.from_bytes(data[-8:-4], "little")
            if data[:4] != MAGIC or data[-4:] != MAGIC or size + 12 > len(data):
                raise ValueError("not a whole Parquet file")
            footer, _ = decode_struct(data, len(data) - 8 - size)
            if footer.get(6) != CREATOR:
                raise ValueError("written by another program")
            self.rows: int = footer[3]
            self.metadata = {pair[1].decode(): pair[2].decode() for pair in footer[5]}
            self._chunks = {
                element[4].decode(): (element, chunk[3])
                for element, chunk in zip(footer[2][1:], footer[4][0][1], strict=True)
            }
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its metadata are damaged: {error}") from None

    @property
    def names(self) -> Sequence[str]:
        return list(self._chunks)

    def column(self, name: str) -> ParquetColumn:
        """Raises ValueError, and KeyError where there is no such column."""
        if name not in self._read:
            self._read[name] = self.decode_column(name, _STANDARD)
        return self._read[name]

    def list_page(self, name: str, number: int) -> ParquetColumn:
        """LIST_PAGE_ROWS lists of a column, or fewer in the last page. Raises ValueError, and
        KeyError where there is no such column."""
        element, chunk = self._chunks[name]
        begins = self._pages.setdefault(name, [chunk[9]])
        with _report_damage(name):
            while len(begins) <= number:
                header, begin = decode_struct(self._data, begins[-1])
                begins.append(begin + header[3])
            body, header, _ = self._read_page(begins[number])
            page = _join_lists(name, element[1], [(body, header[5][1], header[5][2])], _STANDARD)
        if len(page.lengths) != min(LIST_PAGE_ROWS, self.rows - number * LIST_PAGE_ROWS):
            raise ValueError(f"column {name} has pages of other lengths")
        return page

    def decode_column(self, name: str, decoder: PageDecoder) -> ParquetColumn:
        """A column that is not kept. Raises ValueError, and KeyError where there is none."""
        with _report_damage(name):
            return self._decode_column(name, decoder)

    def _decode_column(self, name: str, decoder: PageDecoder) -> ParquetColumn:
        element, chunk = self._chunks[name]
        physical, repetition = element[1], element[3]
        labels: list[str] = []
        at = chunk[9]
        if 11 in chunk:
            body, header, _ = self._read_page(chunk[11])
            labels = _read_texts(body, header[7][1])
        pages = []
        count = 0
        while count < chunk[5]:
            body, header, at = self._read_page(at)
            values = header[5][1]
            if not 0 < values <= MAX_PAGE_VALUES:
                raise ValueError("a page has a wrong number of values")
            pages.append((body, values, header[5][2]))
            count += values
        if repetition == _REPEATED:
            return _join_lists(name, physical, pages, decoder)
        (body, count, encoding) = pages[0]
        if len(pages) > 1 or count != self.rows:
            raise ValueError(f"column {name} has other rows than the file")
        present, begin = None, 0
        there = count
        if repetition == _OPTIONAL:
            present, begin = _read_levels(body, 0, count, decoder)
            there = present.count(1)
        if physical == _BOOLEAN:
            return ParquetColumn(name, "flag", decoder.unpack_bits(body[begin:], there), present)
        if physical != _BYTE_ARRAY:
            kind: ColumnKind = "double" if physical == _DOUBLE else "int"
            numbers = _join_bytes(body[begin:], physical, there, decoder)
            return ParquetColumn(name, kind, numbers, present)
        if encoding == _PLAIN:
            labels = _read_texts(body[begin:], there)
            return ParquetColumn(name, "text", array("i", range(there)), present, (), labels)
        return ParquetColumn(name, "text", _read_codes(body, begin, there), present, (), labels)

    def _read_page(self, at: int) -> tuple[bytes, dict[int, Any], int]:
        """(content, header, the place behind the page)."""
        header, begin = decode_struct(self._data, at)
        if header[3] < 0:
            raise ValueError("a page has a wrong length")
        end = begin + header[3]
        body = zlib.decompress(self._data[begin:end], _GZIP_WINDOW, header[2])
        return body, header, end


@contextmanager
def _report_damage(name: str) -> Iterator[None]:
    try:
        yield
    except (IndexError, KeyError, TypeError, OverflowError, MemoryError, zlib.error) as error:
        raise ValueError(f"column {name} is damaged: {error}") from None


def _join_lists(
    name: str, physical: int, pages: Sequence[tuple[bytes, int, int]], decoder: PageDecoder
) -> ParquetColumn:
    values = []
    lengths = []
    for body, count, _ in pages:
        begins, at = _read_levels(body, 0, count, decoder)
        filled, at = _read_levels(body, at, count, decoder)
        values.append(_join_bytes(body[at:], physical, filled.count(1), decoder))
        lengths.append(decoder.measure_lists(begins, filled))
    return ParquetColumn(
        name, "list", decoder.join_pages(values), None, decoder.join_pages(lengths)
    )


def _join_bytes(data: bytes, physical: int, count: int, decoder: PageDecoder) -> Any:
    kind, width = _WIDTHS[physical]
    if len(data) != width * count:
        raise ValueError("a page of numbers has a wrong length")
    return decoder.join_bytes(data, kind, width)


def _read_texts(body: bytes, count: int) -> list[str]:
    width = int.from_bytes(body[:4], "little") + 4
    if len(body) == count * width and all(
        body[byte::width] == body[byte : byte + 1] * count for byte in range(4)
    ):  # ids: all have one length
        begins = range(4, 4 + count * width, width)
        return [body[begin : begin + width - 4].decode() for begin in begins]
    texts = []
    at = 0
    for _ in range(count):
        begin = at + 4
        at = begin + int.from_bytes(body[at:begin], "little")
        if at > len(body):
            raise ValueError("a page of texts is cut short")
        texts.append(body[begin:at].decode())
    return texts


def _read_codes(body: bytes, at: int, count: int) -> "array[int]":
    width = body[at]
    run, at = decode_varint(body, at + 1)
    if not run & 1:
        return array("i", [0]) * count
    codes = array({8: "B", 16: "H", 32: "I"}[width])
    codes.frombytes(body[at : at + count * codes.itemsize])
    if len(codes) != count:
        raise ValueError("a page of texts has a wrong length")
    return codes


def _read_levels(body: bytes, at: int, count: int, decoder: PageDecoder) -> tuple[bytes, int]:
    """(a byte for each value, the place behind them)."""
    begin = at + 4
    end = begin + int.from_bytes(body[at:begin], "little")
    run, at = decode_varint(body, begin)
    if not run & 1:
        return bytes([body[at]]) * count, end
    return decoder.unpack_bits(body[at:end], count), end
