"""Decision on one path that several branches may have changed: content and mode are merged separately."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field, structs

from sandkeep_store.merging import clashes as rules
from sandkeep_store.merging.compare import Change
from sandkeep_store.merging.content import no_progress, read_text, same_content
from sandkeep_store.merging.hunks import Shown
from sandkeep_store.merging.model import ConflictKind, Content, Decision, FromBranch, Policy, ShownHunk
from sandkeep_store.merging.record import Spool
from sandkeep_store.merging.text import MOST_TEXT_BYTES, TextMerge, is_text, merge_text
from sandkeep_store.merging.trees import Entry, Progress

Changes = Mapping[str, Change]
"""Changes of one path by branch, in the order of the branches' names."""

_MOST_RESTRICTIVE: Final = 0o1777


class Undecided(Struct, frozen=True, kw_only=True):
    """A conflict: its clashing lines as they are shown; the merged mode, if that is clear; and the result without the
    conflict, if there is one.
    """

    kind: ConflictKind
    mode: int | None = None
    hunks: list[ShownHunk] = field(default_factory=list)
    is_cut: bool = False
    merged: Decision | None = None


Outcome = Decision | Undecided


class _Merged(Struct, frozen=True):
    """A merged content, with the branches it comes from, and how."""

    content: Content
    entry: Entry
    branches: Sequence[str]
    how: str


class Decider:
    """Decisions by the contents of open views: that of the base, and those of the branches by their names."""

    def __init__(
        self, base: int, views: Mapping[str, int], policy: Policy, spool: Spool, progress: Progress = no_progress
    ) -> None:
        self._base = base
        self._views = views
        self._policy = policy
        self._spool = spool
        self._progress = progress
        self._shown = Shown()
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
        content = FromBranch(branch) if after is not None and after.kind == "file" else None
        return Decision(entry=after, content=content, branches=(branch,), how=how)

    def _decide_deleted(self, name: bytes, before: Entry | None, changes: Changes, present: Changes) -> Outcome:
        if self._preferred in changes:
            return self.taken(self._preferred, changes[self._preferred], "policy:ours")
        edited = self._decide_present(name, before, present)
        if isinstance(edited, Undecided):
            return structs.replace(edited, kind="deleted", merged=None) if edited.kind != "kind" else edited
        if self._policy.rule == "union":
            return structs.replace(edited, how="policy:union")
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
        first, entry = next(iter(entries.items()))
        merged = _Merged(FromBranch(first), entry, [], _how(entries))
        return self._with_mode(merged, before, entries, tuple(entries))

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
            return self._with_mode(merged, before, entries, tuple(entries))
        mode = self._merged_mode(before, entries)
        return structs.replace(merged, mode=mode[0] if mode else None)

    def _with_mode(
        self, merged: _Merged, before: Entry | None, entries: Mapping[str, Entry], names: tuple[str, ...]
    ) -> Outcome:
        mode = self._merged_mode(before, entries)
        content = merged.content if merged.entry.kind == "file" else None
        if mode is None:
            provisional = _MOST_RESTRICTIVE
            for entry in (before,) if before else entries.values():
                provisional &= entry.mode
            entry = structs.replace(merged.entry, mode=provisional)
            decision = Decision(entry=entry, content=content, branches=names, how="provisional")
            return Undecided(kind="mode", merged=decision)
        how = merged.how
        if mode[1]:
            how = "policy:ours"
        elif how in ("taken", "alike") and len(names) > 1:
            is_alike = {entries[name].mode for name in names} == {mode[0]} and set(merged.branches or names) == set(
                names
            )
            how = "alike" if is_alike else "merged"
        entry = structs.replace(merged.entry, mode=mode[0])
        return Decision(entry=entry, content=content, branches=names, how=how)

    def _merged_mode(self, before: Entry | None, entries: Mapping[str, Entry]) -> tuple[int, bool] | None:
        """Return the merged mode, and True if the policy chose it; None if modes clash."""
        changed = {
            branch: entry.mode for branch, entry in entries.items() if before is None or entry.mode != before.mode
        }
        modes = set(changed.values())
        if len(modes) == 1:
            return modes.pop(), False
        if not modes:
            assert before is not None
            return before.mode, False
        if self._preferred in changed:
            return changed[self._preferred], True
        return None

    def _merge_content(
        self, name: bytes, before: Entry | None, edited: Sequence[str], entries: Mapping[str, Entry]
    ) -> _Merged | Undecided:
        if not edited:  # the mode alone
            first = next(iter(entries))
            return _Merged(FromBranch(first), entries[first], list(entries), _how(entries))
        if self._is_same(name, edited, entries):
            first = edited[0]
            return _Merged(FromBranch(first), entries[first], edited, _how(edited))
        texts = self._texts(name, before, edited, entries)
        if texts is not None:
            return self._merge_texts(texts, before, edited, entries)
        if self._preferred in edited:
            branch = self._preferred
            return _Merged(FromBranch(branch), entries[branch], [branch], "policy:ours")
        return Undecided(kind="added" if before is None else "binary")

    def _is_same(self, name: bytes, edited: Sequence[str], entries: Mapping[str, Entry]) -> bool:
        if len({entries[branch].size for branch in edited}) > 1:
            return False
        first = self._views[edited[0]]
        return all(same_content(first, self._views[branch], name, self._progress) for branch in edited[1:])

    def _texts(
        self, name: bytes, before: Entry | None, edited: Sequence[str], entries: Mapping[str, Entry]
    ) -> list[bytes] | None:
        """Return the texts of the base, and of the branches that edited it; None if one is no text."""
        found = [] if before is None else [(self._base, before)]
        found += [(self._views[branch], entries[branch]) for branch in edited]
        if any(entry.size > MOST_TEXT_BYTES for _, entry in found):
            return None
        texts = [b""] if before is None else []
        for view, entry in found:
            texts.append(read_text(view, name, entry.size))
            self._progress(entry.size)
            if not is_text(texts[-1]):
                return None
        return texts

    def _merge_texts(
        self, texts: Sequence[bytes], before: Entry | None, edited: Sequence[str], entries: Mapping[str, Entry]
    ) -> _Merged | Undecided:
        merge, how = merge_text(texts[0], texts[1:]), "merged"
        if merge.clashes:
            merge = self._by_policy(merge, edited)
            how = f"policy:{self._policy.rule}"
        if merge.clashes:
            hunks, is_cut = self._shown.hunks(merge.clashes, edited)
            return Undecided(kind="added" if before is None else "content", hunks=hunks, is_cut=is_cut)
        text = merge.text()
        newest = max(entries[branch].mtime_ns for branch in edited)
        entry = structs.replace(entries[edited[0]], size=len(text), mtime_ns=newest, device=0, inode=0, links=1)
        return _Merged(self._spool.put(text), entry, edited, how)

    def _by_policy(self, merge: TextMerge, edited: Sequence[str]) -> TextMerge:
        if self._preferred in edited:
            return rules.prefer(merge, edited.index(self._preferred))
        if self._policy.rule == "union":
            return rules.unite(merge)
        if self._policy.rule == "markers":
            return rules.mark(merge, edited)
        return merge


def _is_replaced(before: Entry | None, present: Changes) -> bool:
    """Return True if what a branch has in place of a deleted path does not stand against the deletion. As in git, a
    directory is no more than the names beneath it: whoever puts one in place of a file deletes the file, too, and the
    other way round.
    """
    kinds = {change.after.kind == "directory" for change in present.values() if change.after is not None}
    return before is not None and kinds == {before.kind != "directory"}


def _how(branches: Mapping[str, object] | Sequence[str]) -> str:
    return "taken" if len(branches) == 1 else "alike"
