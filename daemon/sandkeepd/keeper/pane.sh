# What waits for a process in its terminal, $1 being IN/ID and $2 the FIFO ID.told. Signals for the process's group come here, too, and do nothing:
# they are trapped, and not ignored, so that the process has them by default.
exec 8>&2 2>/dev/null 9>"$2" # a shell may tell of signals, which does not belong in the journal
trap : 1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 23 24 25 26 27 28 29 30 31
trap : 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64
(exec sh "$1.program" 2>&8 8>&-)
code=$?
# A server that hangs reads nothing, and answers nobody: for its sake an end may be late, but not for ever. `command` keeps this
# shell alive when it cannot fork.
command eval 'sleep 30 </dev/null >/dev/null 8>&- 9>&- &'
echo "exit $code $!" >&9
# The kernel throws away what has not been read from a terminal when the leader of its session, which this is, ends while it
# is open. So it lets go of the terminal, and stays until `terminal.sh` ends it.
trap - 1
exec </dev/null >/dev/null 8>&- 9>&-
wait "$!" && kill -9 "$PPID"
exec sleep 3600
