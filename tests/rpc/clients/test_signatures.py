"""Text that `help`, `inspect` and editors show of the methods, for clients with and without an event loop."""

import inspect
import pydoc
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import patient

from sandkeep.clients import handles
from sandkeep.clients.binding import Nouns, bind, parameters
from sandkeep.clients.signatures import signature
from sandkeep.protocol.methods import METHODS

NOUNS = {name.partition(".")[0] for name in METHODS}


class Blocking(Nouns):
    def _call(self, row: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return row.name, args, kwargs


class Async(Nouns):
    async def _call(self, row: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return row.name, args, kwargs


def functions(client: Any) -> list[Any]:
    return [getattr(getattr(client, noun), verb) for noun, _, verb in (name.partition(".") for name in METHODS)]


def shown(thing: Any) -> str:
    return pydoc.plain(pydoc.render_doc(thing))


def test_help_shows_parameters_types_defaults_and_the_description() -> None:
    text = shown(Blocking().sandbox.exec)
    for line in (
        "exec(", "    sandbox_id: str,", "    command: Sequence[str] | str,", "    timeout_s: float | None = None,",
        "    inline_bytes: int = 1048576,", "    *,", "    command_id: str | None = None,", ") -> model.ExecResult",
        "    Run a command to its end and return its output.",
    ):  # fmt: skip
        assert line in text.splitlines()
    assert "partial" not in text
    assert "one text for ``sh -c``" in text


def test_help_says_which_methods_are_awaited() -> None:
    assert "\nasync exec(" in shown(Async().sandbox.exec)
    assert "\nexec(" in shown(Blocking().sandbox.exec)
    assert all(map(inspect.iscoroutinefunction, functions(Async())))
    assert not any(map(inspect.iscoroutinefunction, functions(Blocking())))


def test_help_of_python_3_13_shows_the_same() -> None:
    """It shows no signature of a `partial`, and lays signatures out by `format`."""
    for function in functions(Async()):
        assert not isinstance(function, partial)
        assert inspect.signature(function).format(max_width=20) == str(inspect.signature(function))  # type: ignore[attr-defined]


def test_help_fits_a_terminal_of_80_columns() -> None:
    classes = [made for either in (True, False) for made in handles.family(asynchronous=either).values()]
    methods = [member for made in classes for name, member in vars(made).items() if not name.startswith("_")]
    for thing in (*functions(Async()), *functions(Blocking()), *classes, *methods, *map(Blocking().__getattr__, NOUNS)):
        assert [line for line in shown(thing).splitlines()[1:] if len(line) > 80] == []


def test_help_lists_the_methods_of_a_noun() -> None:
    text = shown(Blocking().sandbox)
    assert "exec: Run a command to its end and return its output." in text
    assert repr(Blocking().quota) == "<methods of quota: see help()>"


def test_a_method_has_the_name_and_docstring_of_its_row() -> None:
    for function, row in zip(functions(Blocking()), METHODS.values(), strict=True):
        assert f".{function.__name__}" == row.name[row.name.index(".") :]
        assert " ".join(function.__doc__.split()).startswith(row.summary)


@pytest.mark.parametrize("name", METHODS)
def test_a_call_takes_what_the_signature_says(name: str) -> None:
    row = METHODS[name]
    names, required, positional = parameters(row.params)
    shown = signature(row).parameters
    assert list(shown) == [*names, *(["command_id"] if row.mutates else []), "progress"]
    for number, known in enumerate(names):
        assert (shown[known].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD) == (number < positional)
        assert (shown[known].default is inspect.Parameter.empty) == (known in required)
    rest = dict.fromkeys(names[positional:], 1)
    given = bind(row, tuple(range(positional)), rest)
    assert [given[known] for known in names] == [*range(positional), *rest.values()]
    with pytest.raises(TypeError, match="positional"):
        bind(row, tuple(range(positional + 1)), rest)


def test_what_python_programs_have_at_hand_can_be_given() -> None:
    def sent(method: str, **given: Any) -> dict[str, Any]:
        return bind(METHODS[method], (), given)

    assert sent("image.create", source=Path("/project"))["source"] == "/project"
    assert sent("snapshot.create", sandbox_id="a", include=(Path("b"), "c"))["include"] == ["b", "c"]
    assert sent("sandbox.exec", sandbox_id="a", command="cat", stdin="grüße")["stdin"] == "grüße".encode()
    assert sent("process.write_stdin", sandbox_id="a", name="b", data=bytearray(b"c"))["data"] == b"c"
    assert sent("sandbox.exec", sandbox_id="a", command="cat", timeout=5)["timeout_s"] == 5
    assert sent("process.wait", sandbox_id="a", name="b", timeout=5)["timeout_s"] == 5
    with pytest.raises(TypeError, match="no parameter 'timeout'"):
        sent("sandbox.get", sandbox_id="a", timeout=5)
    with pytest.raises(TypeError, match=r"sandbox.exec\(\) cannot send env: .*object"):
        sent("sandbox.exec", sandbox_id="a", command="cat", env={"A": object()})
    with pytest.raises(TypeError, match="did you mean 'memory_bytes'"):
        sent("sandbox.create", image_id="a", memory="1G")
    with pytest.raises(TypeError, match="it takes sandbox_id"):
        sent("sandbox.get", sandbox_id="a", zzz=1)


def test_whoever_only_calls_does_not_load_what_describes() -> None:
    """The command is a client, too: it starts in a few milliseconds."""
    code = (
        "import sys\n"
        "from sandkeep.blocking import Client, connect\n"
        "from sandkeep.clients.binding import ClientMethod\n"
        "from sandkeep.protocol.methods import METHODS\n"
        "ClientMethod(lambda row: row, METHODS['daemon.ping'])()\n"
        "print(sorted({'sandkeep.clients.signatures', 'sandkeep.clients.handles'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=patient(60), check=True
    )
    assert done.stdout == "[]\n"
