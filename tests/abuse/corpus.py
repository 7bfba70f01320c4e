"""Hostile inputs, made by code: bytes that a stranger may send, each usable in every position.

`raw` goes where bytes go (a stream's entry, a request's body). `text` is the same as Python hands bytes on that are no
UTF-8, with lone surrogates for the bad ones; it goes where text goes (a value, a key, a name, an error's message).
Whatever would run, were it run, leaves a trace that is called `pwned`: a file, a table, a key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

__all__ = ["CANARY", "Hostile", "corpus", "deep", "huge"]

CANARY = "pwned"
MAX_NAME = 255  # the longest name that job stores and reports take


@dataclass(frozen=True)
class Hostile:
    """One input. `payload` is what its bytes are as a payload; None: they must be refused."""

    name: str
    raw: bytes
    payload: dict[str, object] | None = None

    @property
    def text(self) -> str:
        try:
            return self.raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return self.raw.decode("utf-8", "surrogateescape")

    @property
    def is_unicode(self) -> bool:
        """Whether its text can be stored at all."""
        return not any("\ud800" <= character <= "\udfff" for character in self.text)

    @property
    def is_name(self) -> bool:
        """Whether it may name a queue, a worker, a job."""
        return self.is_unicode and "\0" not in self.text and 0 < len(self.text) <= MAX_NAME


@cache
def corpus() -> tuple[Hostile, ...]:
    """All of them but the huge and the deep, the same ones in the same order at every call."""
    found: dict[bytes, Hostile] = {}
    for family in _FAMILIES:
        for number, one in enumerate(family()):
            raw, payload = one if isinstance(one, tuple) else (one, None)
            raw = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
            found.setdefault(raw, Hostile(f"{family.__name__}-{number}", raw, payload))
    return tuple(found.values())


def huge(megabytes: int = 50) -> bytes:
    """A payload in every way but its size."""
    return b'{"value":"' + b"x" * (megabytes * 1024 * 1024) + b'"}'


def deep(levels: int = 100_000) -> bytes:
    """A payload in every way but its depth."""
    return b'{"value":' * levels + b"1" + b"}" * levels


Family = Iterator[str | bytes | tuple[str | bytes, dict[str, object] | None]]


def _empty() -> Family:
    yield from ("", " ", "\t", "\n", "\r\n", "\0", "\0\0\0", " " * 300, "\n" * 300, "\ufeff", "\u3000")


def _invalid_utf8() -> Family:
    bad = [
        b"\xff",
        b"\xfe\xff",
        b"\xc0\x80",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\x80",
    ]
    bad += [b"\xf8\x88\x80\x80\x80", b"\xff\xfe{\x00}\x00"]
    for one in bad:
        yield from (
            one,
            b"a" + one,
            one + b"a",
            b'{"value":"' + one + b'"}',
            b'{"' + one + b'":1}',
            one * 100,
        )


def _not_json() -> Family:
    yield from (
        "{",
        "}",
        "{}}",
        "{]",
        "[",
        "{'a':1}",
        "{a:1}",
        '{"a":1,}',
        '{"a"}',
        '{"a":}',
        '{"a":1}{"b":2}',
    )
    yield from (
        '{"a":01}',
        '{"a":.5}',
        '{"a":1.}',
        '{"a":+1}',
        '{"a":0x10}',
        '{"a":1_000}',
        '{"a":tru}',
        '{"a":"}',
    )
    yield from (
        '{"a":"\\x41"}',
        '{"a":"\\u12"}',
        '{"a":"\n"}',
        '{"a":"\x01"}',
        '{"a":1} //',
        '/* */{"a":1}',
        "a: 1",
    )
    yield from (
        "<a>1</a>",
        "a=1&b=2",
        "data: {}\n\n",
        "\x1f\x8b\x08\x00",
        "PK\x03\x04",
        "%PDF-1.7",
        "\x7fELF",
        "'",
    )
    yield from (
        '\ufeff{"a":1}',
        ")]}',\n{}",
        'x{"a":1}',
        '{"a":1}\0',
        '\0{"a":1}',
        '{"a":"\0"}',
        "undefined",
        "None",
    )


def _not_an_object() -> Family:
    yield from (
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1.5",
        "1e5",
        '""',
        '"text"',
        "[]",
        "[{}]",
        '[{"a":1}]',
        "9" * 400,
    )


def _numbers() -> Family:
    for number in (
        "NaN",
        "-NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "inf",
        "1e400",
        "-1e400",
        "1e99999999",
        "9" * 4301,
    ):
        yield f'{{"value":{number}}}'
        yield f'{{"a":[0,{{"value":{number}}}]}}'
    for whole in (2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, -(10**4298)):
        yield f'{{"value":{whole}}}', {"value": whole}
    for number, value in (("1e-400", 0.0), ("-0.0", 0.0), ("1e308", 1e308), ("5e-324", 5e-324)):
        yield f'{{"value":{number}}}', {"value": value}


def _surrogates() -> Family:
    yield from ("\ud800", "\udfff", "a\ud83d", "\ude00\ud83d", "\udc80" * 40, '{"value":"\ud800"}')
    yield from (
        '{"value":"\\ud800"}',
        '{"value":"\\udc00\\ud800"}',
        '{"\\ud800":1}',
        '{"value":"\\ud83d\\u0041"}',
    )
    yield '{"value":"\\ud83d\\ude00"}', {"value": "\U0001f600"}


def _odd_objects() -> Family:
    """Payloads, if strange ones: taken, and given back as they are."""
    odd: list[tuple[str, dict[str, Any]]] = [("{}", {}), (" {} ", {}), ('{"":""}', {"": ""})]
    odd += [('{"a":1,"a":2}', {"a": 2}), ('{"data":{"a":1},"data":null}', {"data": None})]
    odd += [('{"value":"\\u0000"}', {"value": "\0"}), ('{"\\u0000":1}', {"\0": 1})]
    odd += [
        ('{"a":' * 99 + "{}" + "}" * 99, _nested(99)),
        ('{"a":[' + "0," * 5_000 + "0]}", {"a": [0] * 5_001}),
    ]
    keys: tuple[str, ...] = (
        "__class__",
        "__init__",
        "__proto__",
        "constructor",
        "id",
        "lease",
        "self",
        "token",
        "$where",
        "$ref",
    )
    keys += (
        "args",
        "kwargs",
        "task",
        "arguments",
        "data",
        "payload",
        "py/object",
        "__reduce__",
        "@type",
        "password",
    )
    odd += [(json.dumps(each), each) for key in keys for each in ({key: "x"}, {key: {key: [key]}})]
    yield from odd


def _nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def _sql() -> Family:
    orders = [
        "DROP TABLE conquiet_jobs",
        "DELETE FROM conquiet_jobs",
        f"CREATE TABLE {CANARY} (x int)",
        f"COPY (SELECT 1) TO PROGRAM 'touch {CANARY}'",
        f"ATTACH DATABASE '{CANARY}' AS x; CREATE TABLE x.{CANARY} (x)",
        "UPDATE conquiet_jobs SET state = 'Succeeded'",
        f"SELECT set_config('{CANARY}.x', '1', false)",
    ]
    for order in orders:
        for before, after in (
            ("'; ", "; --"),
            ('"; ', "; --"),
            ("1; ", ""),
            ("'); ", "; --"),
            ("\"}'; ", "; --"),
        ):
            yield before + order + after
        yield f"$$; {order}; $$"
        yield f"\\'; {order}; --"
    yield from (
        "' OR 1=1 --",
        "' OR ''='",
        "1 UNION SELECT version()",
        "%s",
        "%(id)s",
        ":id",
        "?",
        "$1",
        "E'\\x27'",
    )
    yield from (
        "{}",
        '{"a","b"}',
        "{NULL}",
        "NULL",
        "\\N",
        "\\.",
        '"',
        "'",
        "''",
        '""',
        "\\",
        '\\"',
        "\\\\",
        '","',
    )
    yield from (
        "a,b",
        "{",
        "}",
        "a;b",
        "--",
        "/*",
        "*/",
        "\\x00",
        "x'00'",
        "%",
        "_",
        "\t",
        "`",
        "[a]",
        "conquiet_jobs",
    )


def _redis() -> Family:
    calls = [f"redis.call('SET','{CANARY}',1)", "redis.call('FLUSHALL')", f"os.execute('touch {CANARY}')"]
    calls += [f'loadstring(\'redis.call("SET","{CANARY}",1)\')()', f"io.open('{CANARY}','w')"]
    for call in calls:
        yield from (call, f"' {call} --", f"]] {call} --[[", f'") {call} --', f"end {call}", f"{{{call}}}")
    for words in (("SET", CANARY, "1"), ("FLUSHALL",), ("CONFIG", "SET", "dir", "/"), ("SHUTDOWN",)):
        inline = " ".join(words)
        packed = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        yield from (f"\r\n{inline}\r\n", packed, f"\r\n{packed}", f"x\r\n{packed}", f"$-1\r\n{packed}")
    yield from (
        "*",
        "?",
        "[a-z]",
        "$",
        ">",
        "0-0",
        "-",
        "+",
        "*1",
        "{tag}",
        "{}",
        "a{b}c",
        "__keyspace@0__:x",
    )


def _code() -> Family:
    touch = f"touch {CANARY}"
    yield from (
        f"$({touch})",
        f"`{touch}`",
        f"; {touch}",
        f"| {touch}",
        f"&& {touch}",
        f"\n{touch}\n",
        f"$(<{CANARY})",
    )
    python = f"__import__('os').system('{touch}')"
    yield from (
        python,
        f"{{{python}}}",
        f"{{{{ {python} }}}}",
        f"f'{{{python}}}'",
        f"eval({python!r})",
        f"exec({python!r})",
    )
    yield from (
        f"import os; os.system('{touch}')",
        f"lambda: {python}",
        f"!!python/object/apply:os.system ['{touch}']",
    )
    yield f"cos\nsystem\n(S'{touch}'\ntR."  # a pickle that runs it when it is loaded
    yield b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(touch)]) + touch.encode() + b"\x85R."
    yield (
        json.dumps({"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, [touch]]}),
        {
            "py/object": "os.system",
            "py/reduce": [{"py/function": "os.system"}, [touch]],
        },
    )
    yield from (f"${{{touch}}}", f"#{{{touch}}}", f"<%= `{touch}` %>", f"${{jndi:ldap://127.0.0.1/{CANARY}}}")
    yield from (
        "os:system",
        "conquiet.errors:redact",
        "builtins.exec",
        "../../etc/passwd",
        "..\\..\\x",
        "/dev/zero",
    )
    yield from (
        "file:///etc/passwd",
        "sqlite:///x.db",
        "memory://",
        "redis://127.0.0.1:1/0",
        "C:\\x",
        "~",
        "CON",
        "-rf",
    )
    yield from (
        "--help",
        "--debug",
        "-",
        "@file",
        "a" * 255,
        "a" * 256,
        "a" * 70_000,
        "é" * 255,
        "\U0001f4a9" * 255,
    )


def _format_strings() -> Family:
    yield from (
        "%s",
        "%d",
        "%n%n%n%n",
        "%x" * 50,
        "%(levelname)s",
        "%(secret)s",
        "%",
        "%%",
        "%*d",
        "%.1000000000f",
        "%c",
    )
    yield from ("{}", "{0}", "{x}", "{", "}", "{{}}", "{0.__class__}", "{job.lease.token}", "{self.__dict__}")
    yield from (
        "{0:1000000000}",
        "{:>1000000000}",
        "{!r}",
        "$x",
        "${x}",
        "%1$s",
        "{0.__init__.__globals__}",
        "\\g<0>",
    )


def _markup() -> Family:
    script = f"<script>document.title='{CANARY}'</script>"
    yield from (
        script,
        f'"><img src=x onerror={CANARY}>',
        f"javascript:{CANARY}()",
        "<!--",
        "-->",
        "]]>",
        "<![CDATA[",
    )
    yield from (
        "&lt;",
        "&#x3c;",
        "<svg/onload=alert(1)>",
        "</td></tr></table>",
        "[link](javascript:x)",
        "# heading",
    )
    yield from (
        "[bold red]x[/]",
        "[/]",
        "[link=file:///]x[/link]",
        "|a|b|",
        "```",
        "<?xml version='1.0'?><!DOCTYPE x>",
    )
    yield '<!DOCTYPE x [<!ENTITY y SYSTEM "file:///etc/passwd">]><x>&y;</x>'
    yield json.dumps({"value": script}), {"value": script}


def _unicode() -> Family:
    yield from (
        "\u202egnp.exe",
        "\u202a\u202b\u202c\u202d\u202e",
        "\u2066x\u2069",
        "\u200f",
        "\u200b",
        "a\u200bb",
        "\u00ad",
    )
    yield from (
        "e\u0301",
        "\u00e9",
        "\ufb01",
        "\u212a",
        "\u0130",
        "ß",
        "\u2028",
        "\u2029",
        "\u0085",
        "\ufffe",
        "\uffff",
    )
    yield from (
        "\U0010ffff",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "a" + "\u0301" * 200,
        "\u0600",
        "\ufdfd" * 80,
    )
    yield from (
        "аdmin",
        "ａｄｍｉｎ",
        "\u1f4a9",
        "\u5b57\u5178",
        "\u05d0\u05d1",
        "\u0645\u0631\u062d\u0628\u0627",
        "\ue000",
    )


def _control_characters() -> Family:
    for code in (*range(1, 32), *range(127, 160)):
        yield f"a{chr(code)}b"
    sequences = [
        "[31mred[0m",
        "[2J[H",
        "]0;title\x07",
        "]8;;file:///\x07x",
        "[6n",
        "P$qm\x1b\\",
        "c",
        "[?1049h",
        "#8",
    ]
    for sequence in sequences:
        yield from (f"\x1b{sequence}", f"a\n\x1b{sequence}\n", json.dumps(f"\x1b{sequence}"))
    yield from (
        "a\nERROR:conquiet:forged",
        "a\r\nSet-Cookie: x=1",
        "a\r\n\r\n<html>",
        "a\b\b\bb",
        "a\x0b\x0cb",
        "\x04",
    )


_FAMILIES: list[Callable[[], Family]] = [
    _empty,
    _invalid_utf8,
    _not_json,
    _not_an_object,
    _numbers,
    _surrogates,
    _odd_objects,
    _sql,
    _redis,
    _code,
    _format_strings,
    _markup,
    _unicode,
    _control_characters,
]
