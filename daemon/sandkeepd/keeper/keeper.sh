#!/bin/sh
# Sandkeep's keeper: the first process of a sandbox. It takes requests from standard input, a FIFO, one a line, and tells
# in OUT/exits, one line each, what became of them.   sh keeper IN OUT [FILE_BLOCKS [PROCESSES [ADDRESS_KIB]]]
#
#   run ID MODE [SCRIPT]  start SCRIPT, or IN/ID (a script that ends in exec); MODE is the kind of its standard input:
#                   none, file, pipe; or tty: the script then is `terminal.sh`, and speaks for itself
#   exec ID MODE SCRIPT  the same, where SCRIPT ends in the exec of `leader -w`, which is its own watcher; no tty
#   secret ID TEXT  a piece of the assignments that only the process ID will see; comes before its run
#   share - TEXT    the same for every process that starts from now on
#   kill ID SIGNAL [N]  signal the process's group, and say that it was N    eof ID   no more input will come
#   check ID        say live, lost, none, or how it ended   sweep -      say which have lost their watcher
#   ask - ID...     say how these ended, if they did
#   pid ID PID      from a watcher: started             done ID [CODE]   from a watcher: its last line is written
#
# Answers: "ID +PID" started, "ID CODE" ended, "ID none" not started, "ID live", "ID lost", "ID ~N" signal N was sent.
# All is done with builtins: a fork costs more than everything else here together.
in=$1 out=$2 newline='
' live=' ' gone=0 ended=' ' older=' ' shared='' secrets='' whose=''
unset SANDKEEP_LOG # it marks the first process, for the host to see
set -f
trap '' INT # some shells catch it, and end; what one does not catch cannot reach the first process from inside
ulimit -c 0
[ -n "$3" ] && ulimit -f "$3"
[ -n "$4" ] && { ulimit -u "$4" || ulimit -p "$4"; } 2>/dev/null
[ -n "$5" ] && ulimit -v "$5"
exec 3<&0 4>>"$out/exits" 5>/dev/null </dev/null || exit 125
echo ready
exec >&5 2>&5

# Runs beside the process and outside its group, so that what is sent to the group leaves the watcher alone. What a secret is
# called must not matter, so beyond the assignments only positional parameters are used: $3 the script's file, $4 a newline,
# $6 the script, if it is short.
watch() {
	command exec 4>>"$out/exits" # its own: that it is closed tells the daemon of a watcher's end, however that came
	journal=$out/p/$1 input=/dev/null pid='' closed='' code=''
	case $2 in
	file) input=$in/$1.stdin ;;
	pipe)
		input=$in/$1.stdin
		exec 6<>"$input" # the daemon's death must not look like the end of the input
		trap 'exec 6>&-; closed=1' USR1
		;;
	esac
	exec 7<"$input" # now, since the name may be gone before the process runs
	{
		command eval '{ eval "$shared$mine" "$6"; } <&7 3<&- 4>&- 5>&- 6>&- 7<&- & pid=$!'
	} >>"$journal.stdout" 2>>"$journal.stderr"
	exec 7<&-
	if [ -n "$pid" ]; then
		echo "pid $1 $pid" >&3 # not from a file: the code inside could have another process killed by it, or none
		echo "$1 +$pid" >&4 # one short appending write: whole or absent
		while
			wait "$pid"
			code=$?
			[ -n "$closed" ] && [ "$code" = 138 ] # USR1 interrupted the waiting; the process goes on
		do closed=''; done
		echo "$1 $code" >&4
	else
		echo "$1 none" >&4
	fi
	echo "done $1 $code" >&3 # wakes the keeper, which forgets this watcher and reaps
}

# The same, where the script becomes the watcher: two forks less. It comes back only if it could not.
watch_self() {
	trap "echo '$1 none' >&4; echo 'done $1' >&3" EXIT
	command exec 4>>"$out/exits"
	case $2 in
	none) command exec </dev/null ;;
	file) command exec <"$in/$1.stdin" ;;
	pipe) command exec 6<>"$in/$1.stdin" <"$in/$1.stdin" ;;
	esac
	command exec >>"$5.stdout" 2>>"$5.stderr" || exit 125
	eval "$shared$mine" "$6"
}

# A terminal's script tells by itself how its process starts and ends. If it was killed, so is the process.
watch_terminal() {
	command exec 4>>"$out/exits"
	{
		command eval '{ eval "$shared$mine" ". \"\$3\""; } </dev/null 5>&- & pid=$!'
	} >>"$5.stdout" 2>>"$5.stderr"
	if [ -z "$pid" ]; then
		echo "$1 none" >&4
	elif ! wait "$pid"; then
		echo "kill $1 9" >&3
		echo "$1 lost" >&4
	fi
	echo "done $1" >&3
}

# `live` lists the ids of those that run, and now and then of some that did. Of each that does, watcher_ID is its watcher,
# and pid_ID the process once that is known; PID.GROUP for one in a terminal. To search a long text for them would take a
# shell the square of its length.
watcher_of() {
	case $1 in *[!A-Za-z0-9_]*) return 1 ;; esac
	eval "watcher=\${watcher_$1-} pid=\${pid_$1-}"
	[ -n "$watcher" ]
}

forget() {
	watcher_of "$1" || return
	unset "watcher_$1" "pid_$1" "gone_$1" "doomed_$1"
	gone=$((gone + 1))
	[ "$gone" -lt 64 ] || tidy
}

tidy() {
	listed=$live live=' ' gone=0
	for entry in $listed; do
		eval "[ -n \"\${watcher_$entry-}\" ]" && live="$live$entry "
	done
	return 0
}

# The last that ended are known for a while: the code inside can spoil the file of answers before the daemon has read it.
note() {
	ended="$ended$1=${pid%.*}:$2 "
	[ "${#ended}" -lt 4096 ] || { older=$ended ended=' '; }
}

recall() {
	entry=$older$ended
	case $entry in *" $1="*) ;; *) echo "$1 none" >&4; return ;; esac
	entry=${entry#*" $1="}
	entry=${entry%% *}
	echo "$1 +${entry%:*}" >&4
	echo "$1 ${entry#*:}" >&4
}

signal() {
	case ${pid%.*} in '' | 0* | 1 | *[!0-9]*) return ;; esac
	case $pid in
	*.*) kill "-$1" "-${pid%.*}" || kill "-$1" "-${pid#*.}" ;; # in a terminal, with or without a group of its own
	*) kill "-$1" "-$pid" || kill "-$1" "$pid" ;;                # it may not have become the leader of its group yet
	esac
}

# Whatever was killed by this before its pid was known is killed then; asked for again, its watcher is.
doom() {
	eval "seen=\${doomed_$1-} doomed_$1=1"
	[ -z "$seen" ] || kill -9 "$watcher" # held by the code inside before it could tell of its process
}

# A process whose watcher was killed cannot be told of any more, so it is ended. But what a watcher has said as it ended may
# lie behind this in the FIFO, so that is done when it is looked at again; "live" has the daemon ask again.
examine() {
	watcher_of "$1" || { recall "$1"; return; }
	kill -CONT "$watcher" && return # one that the code inside has stopped could tell nothing
	eval "seen=\${gone_$1-} gone_$1=1"
	[ -n "$seen" ] || { echo "$1 live" >&4; return; }
	forget "$1"
	signal 9
	echo "$1 lost" >&4
}

while IFS= read -r line <&3; do
	jobs >&5 # reaps: what has ended counts as a process until then
	verb=${line%% *} rest=${line#* }
	id=${rest%% *} argument=${rest#* }
	case $id in -) ;; '' | *[!A-Za-z0-9_]*) continue ;; esac
	case $verb in
	run | exec)
		mine=''
		[ "$whose" = "$id" ] && mine=$secrets secrets='' whose=''
		how=watch script='. "$3"'
		case $argument in *' '*) script=${argument#* } argument=${argument%% *} ;; esac
		[ "$argument" = tty ] && how=watch_terminal pid=''
		[ "$verb" = exec ] && how=watch_self
		# `command` keeps the keeper alive when it cannot fork
		if command eval '$how "$id" "$argument" "$in/$id" "$newline" "$out/p/$id" "$script" &'; then
			eval "watcher_$id=$! pid_$id=" # an id has letters, digits and _ alone
			live="$live$id "
		else
			echo "$id none" >&4
		fi
		;;
	secret)
		[ "$whose" = "$id" ] || secrets='' whose=$id
		secrets=$secrets$argument
		;;
	share) shared=$shared$argument ;;
	pid)
		if watcher_of "$id"; then
			eval "pid_$id=\$argument pid=\$argument seen=\${doomed_$id-}"
			[ -z "$seen" ] || signal 9
		fi
		;;
	kill)
		if watcher_of "$id"; then
			if [ -z "$pid" ] && [ "${argument%% *}" = 9 ]; then doom "$id"; else signal "${argument%% *}"; fi
			case $argument in *' '*) echo "$id ~${argument#* }" >&4 ;; esac
			examine "$id"
		else
			recall "$id"
		fi
		;;
	eof) watcher_of "$id" && kill -USR1 "$watcher" ;;
	done)
		if forget "$id"; then
			case $argument in '' | "$id" | *[!0-9]*) ;; *) note "$id" "$argument" ;; esac
		fi
		;;
	check)
		if examine "$id" && watcher_of "$id"; then
			[ -z "$pid" ] || echo "$id +${pid%.*}" >&4
			echo "$id live" >&4
		fi
		;;
	sweep)
		tidy
		for id in $live; do
			watcher_of "$id" && { kill -CONT "$watcher" || examine "$id"; }
		done
		;;
	ask) for id in $argument; do watcher_of "$id" || recall "$id"; done ;;
	esac
done
