"""A program for AstraForge's toolkit, which runs with any module of its names.   MODULE ADDRESS KEY IMAGE SESSION

It prints what each method answered, as JSON. It imports nothing of ours, and needs a sandbox with Python, which the
toolkit calls `python`: so may the image, in its directory `bin`.
"""

import importlib
import json
import sys
from typing import Any

PATH = {"PATH": "/workspace/bin:/usr/local/bin:/usr/bin:/bin"}


def run(module: Any, url: str, key: str, image: str, session_id: str) -> dict[str, Any]:
    client = module.DeepAgentClient(base_url=url, api_key=key)
    made = client.create_sandbox_session({"id": session_id, "image": image, "env": PATH, "a_key_of_the_future": 1})
    box = module.SandboxBackend(
        None, base_url=url, api_key=key, session_id=session_id, root_dir="/workspace", timeout=60.0
    )
    seen: dict[str, Any] = {"made": [made.session_id, made.status, made.workspace_path, made.mode]}

    first, again = (box.write("/workspace/src/main.py", "one = 1\ntwo = 2\n") for _ in range(2))
    seen["write"] = [first.error, first.path, again.error is not None]
    seen["write relative"] = box.write("notes.txt", "caf\xe9\n").path
    seen["write refused"] = [bool(box.write(path, "x").error) for path in ("/workspace/notes.txt/x", "/etc/x")]
    changed = box.edit("/workspace/src/main.py", "one = 1", "one = 'first'")
    seen["edit"] = [changed.error, changed.path, changed.occurrences]
    seen["edit all"] = box.edit("src/main.py", "=", ":=", replace_all=True).occurrences
    seen["edit refused"] = [
        bool(box.edit("src/main.py", *words).error) for words in ((":=", "="), ("none", "some"))
    ] + [bool(box.edit("src/none", "a", "b").error)]  # fmt: skip
    read = box.read("src/main.py", 1, 1)
    seen["read"] = read.split() if isinstance(read, str) else read.file_data["content"].split()
    seen["shell"] = [box.shell("cat src/main.py"), box.shell("pwd", cwd="/tmp"), box.shell("echo no >&2; exit 3")]
    seen["python_exec"] = [box.python_exec("print(6 * 7)"), "ZeroDivisionError" in box.python_exec("1 / 0")]
    listed = {entry["path"].rpartition("/")[2]: entry for entry in box.ls_info("/workspace")}
    seen["ls_info"] = [listed["src"]["is_dir"], listed["notes.txt"]["is_dir"], listed["notes.txt"]["size"]]
    seen["grep_raw"] = box.grep_raw("fi.st", "src")
    seen["grep_raw by glob"] = [box.grep_raw("first", glob="*.txt"), len(box.grep_raw("first", None, "*.py"))]
    seen["grep_raw refused"] = isinstance(box.grep_raw("("), str)
    seen["glob_info"] = [
        [entry["path"] for entry in box.glob_info(what, "/workspace")] for what in ("*.py", "**/*.txt", "*.c")
    ]
    seen["download"] = box.download("notes.txt").decode()

    client.upload_file(session_id, "/workspace/deep/er/raw", content=b"\xff\x00")
    seen["content"] = [
        list(client.get_file_content(session_id, "/workspace/deep/er/raw")),
        client.get_file_content(session_id, "/workspace/deep/er/raw", encoding="utf-8"),
    ]
    exported = client.export_file(session_id, "/workspace/notes.txt", filename="n.txt", content_type="text/plain")
    seen["export"] = [exported.filename, exported.content_type, exported.size_bytes]
    seen["heartbeat"] = client.heartbeat_sandbox_session(session_id)["status"]
    client.stop_sandbox_session(session_id)
    seen["stopped"] = client.get_sandbox_session(session_id).status
    seen["listed"] = [each.status for each in client.list_sandbox_sessions() if each.session_id == session_id]
    seen["restored"] = box.download("notes.txt").decode()
    seen["write after"] = box.write("more.txt", "x").error
    client.delete_sandbox_session(session_id)
    return seen


EXPECTED: dict[str, Any] = {
    "write": [None, "/workspace/src/main.py", True],
    "write relative": "/workspace/notes.txt",
    "write refused": [True, True],
    "edit": [None, "/workspace/src/main.py", 1],
    "edit all": 2,
    "edit refused": [True, True, True],
    "shell": ["one := 'first'\ntwo := 2\n", "/tmp\n", "no\n"],
    "python_exec": ["42\n", True],
    "ls_info": [True, False, 6],
    "grep_raw": [{"path": "/workspace/src/main.py", "line": 1, "text": "one := 'first'"}],
    "grep_raw by glob": [[], 1],
    "grep_raw refused": True,
    "glob_info": [["/workspace/src/main.py"], ["/workspace/notes.txt"], []],
    "download": "caf\xe9\n",
    "content": [[255, 0], "\ufffd\0"],
    "export": ["n.txt", "text/plain", 6],
    "heartbeat": "ready",
    "stopped": "terminated",
    "listed": ["terminated"],
    "restored": "caf\xe9\n",
    "write after": None,
}


def check(seen: dict[str, Any], session_id: str) -> None:
    """Compare what was seen with what the toolkit's user expects."""
    made, read = seen.pop("made"), seen.pop("read")
    assert made == [session_id, "ready", "/workspace", "docker"]
    assert read[-3:] == ["two", ":=", "2"]
    assert seen == EXPECTED


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(run(importlib.import_module(name), *arguments)))
