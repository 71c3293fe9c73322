"""The reference of lifecycles, written from their tables: the transitions, and a diagram, of each kind of object."""

from collections.abc import Iterator
from typing import Any, Final

from sandkeep.lifecycle import LIFECYCLES, Before, Keep, Lifecycle, Row
from sandkeep_reference.layout import anchor, item, paragraphs, wrap

_INTRODUCTION: Final = """
The states of each kind of object, and the [events](events.md) that lead from one to another. The daemon decides by
these tables, and its answers follow them. Restoring a checkpoint into new sandboxes is a fork.

A diagram leaves out the events that change no state.
"""

_OUTSIDE: Final = "[*]"
_MANY: Final = 4
"""From how many states an event may lead and still be drawn as so many arrows; from more it is a note."""


def lifecycles_page() -> Iterator[str]:
    """Every kind of object, a state diagram and its events."""
    yield from ("# Lifecycles", "")
    yield from paragraphs(_INTRODUCTION)
    for kind in LIFECYCLES:
        yield from ("", f"## {kind.noun}", "", "```mermaid", "stateDiagram-v2", *_diagram(kind), "```")
        yield ""
        for row in kind.rows:
            yield from item(f"{_event(row)}: {_states(row)} → {_target(row)}")


def _diagram(kind: Lifecycle[Any]) -> Iterator[str]:
    """Arrows with all the events that lead from one state to another, and notes of those that lead from many."""
    arrows: dict[tuple[str, str], dict[str, None]] = {}
    notes: list[str] = []
    for row in kind.rows:
        name = row.event.removeprefix(f"{kind.noun}.")
        for target in _targets(kind, row):
            sources = [source or _OUTSIDE for source in row.sources if source != target]
            if len(sources) > _MANY:
                from_any = ", ".join(source for source in sources if source != _OUTSIDE)
                lines = wrap(f"{name} from {from_any}", first="        ", rest="        ")
                notes += [f"    note right of {target}", *lines, "    end note"]
            for source in sources if len(sources) <= _MANY else set(sources) & {_OUTSIDE}:
                arrows.setdefault((source, target), {})[name] = None
    yield from (f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in arrows.items())
    yield from (f"    {state} --> {_OUTSIDE}" for state in kind.final)
    yield from notes


def _targets(kind: Lifecycle[Any], row: Row[Any]) -> list[str]:
    if isinstance(row.target, Before):
        return [state for state in kind.sources[row.target.intent] if state is not None]
    return [] if isinstance(row.target, Keep) else [row.target]


def _event(row: Row[Any]) -> str:
    link = f"[`{row.event}`](events.md#{anchor(row.event)})"
    return f"{link} with `{row.field}`" if row.field is not None else link


def _states(row: Row[Any]) -> str:
    return ", ".join("none" if state is None else f"`{state}`" for state in row.sources)


def _target(row: Row[Any]) -> str:
    if isinstance(row.target, Before):
        return f"the state before `{row.target.intent}`"
    return row.target.value if isinstance(row.target, Keep) else f"`{row.target}`"
