"""The Lua runtime, with the data model loaded."""

from __future__ import annotations

import hashlib
import importlib
from fractions import Fraction
from importlib.resources import files
from typing import Any

from cluster.errors import SettingsError

_RUNTIMES = ("lupa.luajit21", "lupa.lua51")
"""By preference. LuaJIT takes about half the time; Lua 5.1 is what Redis has, and is in every lupa."""
_PARTS = ("values", "msgpack", "strings_lists", "hashes", "sorted_sets", "server")
_MANTISSA_BITS = 64
"""Of the floats with which Redis adds on a PC."""
_DECIMALS = 17


def make_runtime(run_id: str) -> Any:
    """Return the table of the server's functions in a Lua runtime of its own.

    Raises:
        SettingsError: the package lupa is missing, or has no runtime for these scripts.
    """
    lua = _find_runtime().LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
    server = lua.table()
    server[b"run_id"] = run_id.encode()
    server[b"commands"] = lua.table()
    server[b"make_list"] = _make_list
    server[b"extend_list"] = _extend_list
    server[b"add_floats"] = add_floats
    server[b"sha1hex"] = _sha1hex
    server[b"random"] = lua.globals().math[b"random"]
    # Fewer, longer rounds of garbage collection.
    lua.execute(b"collectgarbage('setpause', 400)")
    load = lua.eval(b"function(text, name, server) assert(loadstring(text, name))(server) end")
    for part in _PARTS:
        load((files("cluster.redis.in_process") / "lua" / f"{part}.lua").read_bytes(), f"={part}".encode(), server)
    return server


def _find_runtime() -> Any:
    for name in _RUNTIMES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise SettingsError(
        "the simulator runs the queue's Lua scripts in process, which needs the package lupa with LuaJIT 2.1 or Lua "
        "5.1: run `pip install 'penstock-llm[loadtest]'`, or `pip install 'lupa>=2.8,<3'`"
    )


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _make_list(*values: Any) -> list[Any]:
    return list(values)


def _extend_list(into: list[Any], *values: Any) -> None:
    into.extend(values)


def add_floats(stored: bytes, by: bytes) -> tuple[bytes, bytes | None]:
    """Add two numbers as HINCRBYFLOAT does; return the sum, and an error or None."""
    if (right := _float(by)) is None:
        return b"", b"ERR value is not a valid float"
    if (left := _float(stored)) is None:
        return b"", b"ERR hash value is not a float"
    if isinstance(left, float) or isinstance(right, float):
        return b"", b"ERR increment would produce NaN or Infinity"
    total = _rounded(left + right)
    return f"{'-' if total < 0 else ''}{_decimal(abs(total))}".encode(), None


def _float(text: bytes) -> Fraction | float | None:
    """Read a number as the nearest float of 64 bits of mantissa; only an infinite one becomes a `float`."""
    word = text.decode("latin-1")
    try:
        if word.strip() != word or set(word) & set("_/"):
            return None
        if "0x" in word.lower():
            return _rounded(Fraction(float.fromhex(word)))
        if "inf" in word.lower():
            return float(word)
        return _rounded(Fraction(word))
    except (ValueError, ZeroDivisionError):
        return None


def _rounded(exact: Fraction) -> Fraction:
    if not exact:
        return exact
    power = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    for shift in (_MANTISSA_BITS - power, _MANTISSA_BITS - power - 1):
        scaled = exact * Fraction(2) ** shift
        if abs(scaled) < 2**_MANTISSA_BITS:
            break
    # Python rounds halves to the even neighbour, as the processor does.
    return round(scaled) / Fraction(2) ** shift


def _decimal(number: Fraction) -> str:
    whole, rest = divmod(round(number * 10**_DECIMALS), 10**_DECIMALS)
    return f"{whole}.{rest:0{_DECIMALS}d}".rstrip("0").rstrip(".")
