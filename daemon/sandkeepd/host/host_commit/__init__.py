"""Commits to the host: the changes of a branch, applied to a caller's directory with the caller's rights only.

`client` is the daemon's side. It starts `program`, which takes the caller's rights before it opens anything of his, and
parses its answer strictly: a caller may manipulate processes of his own uid. The other modules are the program's, and
import only the standard library and `sandkeep.system.openat2`:

* `rights` drops rights, `changes` defines the request, `names` refuses paths, `tree` has the system calls;
* `target` opens the directory, whatever others have put in its path;
* `survey` compares the directory with the changes;
* `staging` is the directory of one commit in the target, `moves` its steps forward and back, `apply` their order.

Every change is one atomic rename between the target and a numbered slot of the staging directory. The journal, written
before the first of them, has the inode of each new and each old entry. So the file system itself says which renames
were done: a slot that holds its new entry was not used yet. `undo` needs no log of progress.
"""
