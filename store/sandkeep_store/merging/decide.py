"""Decision on one path that several branches may have changed: content and mode are merged separately."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field, structs

from sandkeep_store.merging import clashes as rules
from sandkeep_store.merging.compare import Change
from sandkeep_store.merging.contents import Contents, read_texts
from sandkeep_store.merging.hunks import Shown
from sandkeep_store.merging.model import BYTES, ConflictKind, Content, Decision, Policy, ShownHunk
from sandkeep_store.merging.text import Taken, TextMerge, merge_text
from sandkeep_store.merging.trees import Entry

Changes = Mapping[str, Change]
"""Changes of one path by branch, in the order of the branches' names."""

_MOST_RESTRICTIVE: Final = 0o1777


class Undecided(Struct, frozen=True, kw_only=True):
    """A conflict: its clashing lines as they are shown; the branches whose lines other clashes took, by their first
    lines; the merged mode, if that is clear; and the result without the conflict, if there is one.
    """

    kind: ConflictKind
    mode: int | None = None
    hunks: list[ShownHunk] = field(default_factory=list)
    is_cut: bool = False
    choices: dict[int, str | None] = field(default_factory=dict)
    merged: Decision | None = None


class Decided(Struct, frozen=True, kw_only=True):
    """The decided part of a conflict: the branches whose lines clashes take, by the clashes' first lines in the base,
    None for the base; and the mode. With `rest_of_base` the base is taken where neither decides.
    """

    choices: Mapping[int, str | None] = field(default_factory=dict)
    mode: int | None = None
    rest_of_base: bool = False


Outcome = Decision | Undecided


class _Merged(Struct, frozen=True):
    """A merged content, with the branches it comes from, and how."""

    content: Content | None
    entry: Entry
    branches: Sequence[str]
    how: str
    choices: dict[int, str | None] = field(default_factory=dict)


class Decider:
    """Decisions by the contents of the base and the branches. `decided` is the decided part of the one conflict that
    is resolved.
    """

    def __init__(
        self, contents: Contents, policy: Policy, shown: Shown | None = None, decided: Decided | None = None
    ) -> None:
        self._contents = contents
        self._policy = policy
        self._shown = shown or Shown()
        self._decided = decided or Decided()
        self._preferred = policy.branch if policy.rule == "ours" else ""  # a name that no branch has

    def decide(self, name: bytes, changes: Changes) -> Outcome:
        """Decide on a path by all that changed it."""
        before = next(iter(changes.values())).before
        present = {branch: change for branch, change in changes.items() if change.after is not None}
        if not present:
            return Decision(entry=None, branches=tuple(changes), how=_how(changes))
        if len(present) < len(changes) and not _is_replaced(before, present):
            return self._decide_deleted(name, before, changes, present)
        return self._decide_present(name, before, present)

    def taken(self, branch: str, change: Change, how: str) -> Decision:
        """Return the decision for one branch's version."""
        after = change.after
        content = self._contents.version(branch) if after is not None and after.kind == "file" else None
        return Decision(entry=after, content=content, branches=(branch,), how=how)

    def is_alike(self, name: bytes, branch: str, other: str, changes: Changes) -> bool:
        """Return True if two branches changed a path alike."""
        own, others = changes[branch].after, changes[other].after
        if own is None or others is None:
            return own is others
        if (own.kind, own.mode, own.target) != (others.kind, others.mode, others.target):
            return False
        return own.kind != "file" or self._is_same(name, [branch, other], {branch: own, other: others})

    def _decide_deleted(self, name: bytes, before: Entry | None, changes: Changes, present: Changes) -> Outcome:
        if self._preferred in changes and self._preferred not in present:
            return self.taken(self._preferred, changes[self._preferred], "policy:ours")
        edited = self._decide_present(name, before, present)
        if isinstance(edited, Undecided):
            return structs.replace(edited, kind="deleted", merged=None) if edited.kind != "kind" else edited
        if self._policy.rule == "union" or self._preferred in present:
            return structs.replace(edited, how=f"policy:{self._policy.rule}")
        mode = None if edited.entry is None else edited.entry.mode
        return Undecided(kind="deleted", mode=mode, merged=edited)

    def _decide_present(self, name: bytes, before: Entry | None, changes: Changes) -> Outcome:
        entries = {branch: change.after for branch, change in changes.items() if change.after is not None}
        kinds = {entry.kind for entry in entries.values()}
        if len(kinds) > 1:
            return Undecided(kind="kind")
        kind = kinds.pop()
        if before is not None and before.kind != kind:
            before = None
        if kind == "file":
            return self._decide_file(name, before, changes, entries)
        if kind == "symlink":
            return self._decide_target(before, entries)
        entry = next(iter(entries.values()))
        return self._with_mode(_Merged(None, entry, [], _how(entries)), before, entries)

    def _decide_target(self, before: Entry | None, entries: Mapping[str, Entry]) -> Outcome:
        targets = {entry.target for entry in entries.values()}
        if len(targets) == 1:
            first = next(iter(entries.values()))
            return Decision(entry=first, branches=tuple(entries), how=_how(entries))
        if self._preferred in entries:
            entry = entries[self._preferred]
            return Decision(entry=entry, branches=(self._preferred,), how="policy:ours")
        return Undecided(kind="added" if before is None else "symlink")

    def _decide_file(
        self, name: bytes, before: Entry | None, changes: Changes, entries: Mapping[str, Entry]
    ) -> Outcome:
        edited = [branch for branch in entries if before is None or changes[branch].content]
        merged = self._merge_content(name, before, edited, entries)
        if isinstance(merged, _Merged):
            return self._with_mode(merged, before, entries)
        mode = self._merged_mode(before, entries)
        return structs.replace(merged, mode=mode[0] if mode else None)

    def _with_mode(self, merged: _Merged, before: Entry | None, entries: Mapping[str, Entry]) -> Outcome:
        mode = self._merged_mode(before, entries)
        if mode is None:
            return Undecided(kind="mode", choices=merged.choices, merged=_provisional(merged, before, entries))
        chosen, is_preferred = mode
        by_mode = [name for name, entry in entries.items() if before is None or entry.mode != before.mode]
        if before is None and merged.branches:  # a new file's mode comes with its content, unless it was preferred
            by_mode = [self._preferred] if is_preferred else []
        names = tuple(
            name for name in entries if name in merged.branches or (name in by_mode and entries[name].mode == chosen)
        )
        how = merged.how
        if is_preferred:
            how = "policy:ours"
        elif how in ("taken", "alike") and len(names) > 1:
            is_alike = {entries[name].mode for name in names} == {chosen} and set(merged.branches or names) == set(
                names
            )
            how = "alike" if is_alike else "merged"
        entry = structs.replace(merged.entry, mode=chosen)
        return Decision(entry=entry, content=merged.content, branches=names, how=how)

    def _merged_mode(self, before: Entry | None, entries: Mapping[str, Entry]) -> tuple[int, bool] | None:
        """Return the merged mode, and True if the policy chose it; None if modes clash."""
        if self._decided.mode is not None:
            return self._decided.mode, False
        changed = {
            branch: entry.mode for branch, entry in entries.items() if before is None or entry.mode != before.mode
        }
        modes = set(changed.values())
        if len(modes) == 1:
            return modes.pop(), False
        if before is not None and (not modes or self._decided.rest_of_base):
            return before.mode, False
        if self._preferred in changed:
            return changed[self._preferred], True
        return None

    def _merge_content(
        self, name: bytes, before: Entry | None, edited: Sequence[str], entries: Mapping[str, Entry]
    ) -> _Merged | Undecided:
        if not edited:  # the mode alone
            first = next(iter(entries))
            return _Merged(self._contents.version(first), entries[first], [], _how(entries))
        if self._is_same(name, edited, entries):
            first = edited[0]
            return _Merged(self._contents.version(first), entries[first], edited, _how(edited))
        texts = read_texts(self._contents, name, before, {branch: entries[branch] for branch in edited})
        if texts is not None:
            return self._merge_texts(texts, before, edited, entries)
        branch = self._decided.choices.get(BYTES, self._preferred)
        if branch is not None and branch in edited:
            return _Merged(self._contents.version(branch), entries[branch], [branch], "policy:ours", {BYTES: branch})
        if before is not None and (branch is None or self._decided.rest_of_base):
            return _Merged(self._contents.version(None), before, [], "taken", {BYTES: None})
        return Undecided(kind="added" if before is None else "binary")

    def _is_same(self, name: bytes, edited: Sequence[str], entries: Mapping[str, Entry]) -> bool:
        if len({entries[branch].size for branch in edited}) > 1:
            return False
        return self._contents.is_same(name, edited)

    def _merge_texts(
        self, texts: Sequence[bytes], before: Entry | None, edited: Sequence[str], entries: Mapping[str, Entry]
    ) -> _Merged | Undecided:
        merge, how = merge_text(texts[0], texts[1:]), "merged"
        choices = self._choices(merge, edited)
        if merge.clashes:
            numbers = {line: None if name is None else edited.index(name) for line, name in choices.items()}
            merge, how = self._by_policy(rules.choose(merge, numbers), edited), f"policy:{self._policy.rule}"
            if merge.clashes:
                hunks, is_cut = self._shown.hunks(merge.clashes, edited)
                kind: ConflictKind = "added" if before is None else "content"
                return Undecided(kind=kind, hunks=hunks, is_cut=is_cut, choices=choices)
        text = merge.text()
        newest = max(entries[branch].mtime_ns for branch in edited)
        entry = structs.replace(entries[edited[0]], size=len(text), mtime_ns=newest, device=0, inode=0, links=1)
        numbered = {number for region in merge.regions if isinstance(region, Taken) for number in region.by}
        branches = [edited[number] for number in sorted(numbered)]
        return _Merged(self._contents.put(text), entry, branches, how, choices)

    def _choices(self, merge: TextMerge, edited: Sequence[str]) -> dict[int, str | None]:
        """Return the branches whose lines clashes take: as decided, else of the preferred branch if it takes part."""
        choices: dict[int, str | None] = {}
        for clash in merge.clashes:
            names = {edited[number] for number in clash.versions}
            if clash.start in self._decided.choices and self._decided.choices[clash.start] in {None, *names}:
                choices[clash.start] = self._decided.choices[clash.start]
            elif self._preferred in names:
                choices[clash.start] = self._preferred
            elif self._decided.rest_of_base:
                choices[clash.start] = None
        return choices

    def _by_policy(self, merge: TextMerge, edited: Sequence[str]) -> TextMerge:
        if self._policy.rule == "union":
            return rules.unite(merge)
        if self._policy.rule == "markers":
            return rules.mark(merge, edited)
        return merge


def _provisional(merged: _Merged, before: Entry | None, entries: Mapping[str, Entry]) -> Decision:
    """Return the result with the mode that all versions allow, until the mode is decided."""
    mode = _MOST_RESTRICTIVE
    for entry in (before,) if before else entries.values():
        mode &= entry.mode
    names = merged.branches or tuple(entries)
    entry = structs.replace(merged.entry, mode=mode)
    return Decision(entry=entry, content=merged.content, branches=tuple(names), how="provisional")


def _is_replaced(before: Entry | None, present: Changes) -> bool:
    """Return True if what a branch has in place of a deleted path does not stand against the deletion. As in git, a
    directory is no more than the names beneath it: whoever puts one in place of a file deletes the file, too, and the
    other way round.
    """
    kinds = {change.after.kind == "directory" for change in present.values() if change.after is not None}
    return before is not None and kinds == {before.kind != "directory"}


def _how(branches: Mapping[str, object] | Sequence[str]) -> str:
    return "taken" if len(branches) == 1 else "alike"
