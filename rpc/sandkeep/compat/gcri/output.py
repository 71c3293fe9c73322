"""Output of a command, in the words of the originals."""

from typing import Final, Self

from sandkeep.blocking import Client
from sandkeep.model import ExecResult

SUCCESS: Final = "(Success, no output)"
MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum output of a command in an answer, in bytes. The rest is in the journal of its process."""


class Output(str):
    """The output of a command, both streams in one text, or the reason why there is none.

    `exit_code` is None if the command was not run to its end. `timed_out` is True for one that was killed for taking
    too long: the text is then the error, and below it the output until then.
    """

    __slots__ = ("exit_code", "timed_out")
    exit_code: int | None
    timed_out: bool

    def __new__(cls, text: str, exit_code: int | None = None, *, timed_out: bool = False) -> Self:
        """Make a text with attributes."""
        made = super().__new__(cls, text)
        made.exit_code = exit_code
        made.timed_out = timed_out
        return made


def output_of(client: Client, done: ExecResult, timeout_s: float, *, stdout_only: bool = False) -> Output:
    """Return the output of a command that has ended; with `stdout_only` its stdout as it is, or the error."""
    if stdout_only and not done.timed_out and done.exit_code is not None:
        out, err = _streams(client, done)
        failed = f"Error (exit {done.exit_code}): {err.decode(errors='replace').strip()}"
        return Output(failed if done.exit_code else out.decode(errors="replace"), done.exit_code)
    text = _text(client, done)
    if done.timed_out:
        error = f"Error: Command timed out after {timeout_s:.15g} seconds."
        return Output(f"{error}\n{text}" if text else error, done.exit_code, timed_out=True)
    if done.exit_code is None:
        return Output(f"Error: {done.error or 'its exit code is unknown'}")
    return Output(text or (f"Exit Code {done.exit_code}" if done.exit_code else SUCCESS), done.exit_code)


def _text(client: Client, done: ExecResult) -> str:
    """Return a command's output, first its stdout, then its stderr; cut at `MAX_BYTES`."""
    out, err = _streams(client, done)
    total = done.stdout_bytes + done.stderr_bytes
    text = (out + err)[:MAX_BYTES].decode(errors="replace")
    return text if total <= MAX_BYTES else f"{text}\n({total - MAX_BYTES} bytes more)"


def _streams(client: Client, done: ExecResult) -> tuple[bytes, bytes]:
    """Return stdout and stderr of a command, and no more than a piece beyond `MAX_BYTES` of both."""
    if not done.stdout_truncated and not done.stderr_truncated:
        return done.stdout, done.stderr
    out, err = bytearray(), bytearray()
    for piece in client.read_output(done.sandbox_id, done.process_id):
        out += piece.stdout
        err += piece.stderr
        if len(out) + len(err) > MAX_BYTES:
            break
    return bytes(out), bytes(err)
