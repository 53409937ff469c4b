"""Lists of load balancers, in the formats of `incus ... list`. Pure.

Rows are sorted as people count (192.0.2.9 before 192.0.2.10), by their columns from left to right; what is empty comes
last. JSON and YAML keep the server's order.
"""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cmp_to_key

from fairlead.network_cli.document import LoadBalancer, render_yaml, to_wire
from fairlead.network_cli.failure import Failure
from fairlead.terminal import escaped, escaped_json

FORMATS = ("csv", "json", "table", "yaml", "compact")
HEADERS = {"": None, "header": True, "noheader": False}
COLUMNS: dict[str, tuple[str, Callable[[LoadBalancer], str]]] = {
    "l": ("LISTEN ADDRESS", lambda each: each.listen_address),
    "d": ("DESCRIPTION", lambda each: each.description),
    "p": ("PORTS", lambda each: str(len(each.ports))),
    "L": ("LOCATION", lambda each: each.location),
}
DEFAULT_COLUMNS = "ldp"

Table = Sequence[Sequence[str]]


def parse_format(text: str) -> tuple[str, bool | None]:
    """The format, and whether with a header: None is as the format has it. Raises Failure."""
    name, _, header = text.partition(",")
    if name not in FORMATS:
        raise Failure(f'Invalid value "{name}" for flag "--format"')
    if header not in HEADERS:
        raise Failure(f'Invalid modifier "{header}" on flag "--format" ("{text}")')
    return name, HEADERS[header]


def parse_columns(text: str) -> str:
    """Letters, with commas between them or not. Raises Failure."""
    for entry in text.split(","):
        if not entry:
            raise Failure(f"Empty column entry (redundant, leading or trailing command) in '{text}'")
        for letter in entry:
            if letter not in COLUMNS:
                raise Failure(f"Unknown column shorthand char '{letter}' in '{entry}'")
    return text.replace(",", "")


def render(balancers: Sequence[LoadBalancer], chosen: str, columns: str) -> str:
    """The whole list, with its last newline. Raises Failure for a format or columns that there are not."""
    form, header = parse_format(chosen)
    letters = parse_columns(columns)
    whole = [to_wire(each) for each in balancers]
    if form == "json":
        return escaped_json(_escape(json.dumps(whole, ensure_ascii=False, separators=(",", ":")))) + "\n"
    if form == "yaml":
        return render_yaml(whole)
    heads = [COLUMNS[letter][0] for letter in letters]
    rows = sort_rows([[_cell(COLUMNS[letter][1](each)) for letter in letters] for each in balancers])
    with_header = form != "csv" if header is None else header
    if form == "csv":
        return _render_csv([heads, *rows] if with_header else rows)
    draw = _draw_table if form == "table" else _draw_compact
    return draw(heads if with_header else None, rows, len(letters))


def _cell(text: str) -> str:
    """Of a table: it may have several lines."""
    return "\n".join(map(escaped, text.split("\n")))


def _escape(text: str) -> str:
    """As Go writes JSON: safe inside a web page."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def sort_rows(rows: Sequence[list[str]]) -> list[list[str]]:
    return sorted(rows, key=cmp_to_key(_compare))


def _compare(one: Sequence[str], other: Sequence[str]) -> int:
    for left, right in zip(one, other, strict=True):
        if left != right:
            return -1 if right == "" or (left != "" and _natural(left) < _natural(right)) else 1
    return 0


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Numbers by their value, before everything else."""
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def _render_csv(rows: Table) -> str:
    """Go quotes a field that is alone in its row and empty not at all."""
    written = io.StringIO()
    for row in rows:
        if list(row) == [""]:
            written.write("\n")
        else:
            csv.writer(written, lineterminator="\n").writerow(row)
    return written.getvalue()


def _width(text: str) -> int:
    """In columns of a terminal."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) != 0 for letter in text)


def _widths(heads: Sequence[str] | None, rows: Table, columns: int) -> list[int]:
    lines = [*([heads] if heads else []), *rows]
    cells = ([part for row in lines for part in row[column].split("\n")] for column in range(columns))
    return [max(map(_width, each), default=0) for each in cells]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _centre(text: str, width: int) -> str:
    gap = width - _width(text)
    left = gap // 2
    return " " * left + text + " " * (gap - left)


def _lines(row: Sequence[str]) -> list[list[str]]:
    """A row whose cells have several lines."""
    cells = [cell.split("\n") for cell in row]
    height = max(len(cell) for cell in cells)
    return [[cell[number] if number < len(cell) else "" for cell in cells] for number in range(height)]


def _draw_table(heads: Sequence[str] | None, rows: Table, columns: int) -> str:
    widths = _widths(heads, rows, columns)
    rule = "+" + "".join(f"{'-' * (width + 2)}+" for width in widths)
    drawn = [rule]
    if heads:
        drawn += [f"|{''.join(f' {_centre(head, width)} |' for head, width in zip(heads, widths, strict=True))}", rule]
    for row in rows:
        for line in _lines(row):
            drawn.append(f"|{''.join(f' {_pad(cell, width)} |' for cell, width in zip(line, widths, strict=True))}")
        drawn.append(rule)
    return "".join(f"{line}\n" for line in drawn)


def _draw_compact(heads: Sequence[str] | None, rows: Table, columns: int) -> str:
    widths = _widths(heads, rows, columns)
    drawn = [[_centre(head, width) for head, width in zip(heads, widths, strict=True)]] if heads else []
    for row in rows:
        drawn += [[_pad(cell, width) for cell, width in zip(line, widths, strict=True)] for line in _lines(row)]
    return "".join(f"  {'  '.join(line)}  \n" for line in drawn)
