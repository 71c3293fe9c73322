# How a process gets a terminal: a tmux server of its own. The keeper starts a shell with this, after a line that sets
# $1 the process  $2 IN/ID  $3 OUT/p/ID  $4 rows  $5 columns  $6 the session's name  $7 the socket, as seen from OUT/p
# $8 the directory beside OUT that holds ID.told: `in`, or `tty`, which only the inside sees, where gVisor is the kernel.
# Descriptor 3 is the keeper's FIFO, 4 is OUT/exits. Only tmux knows when the process starts and ends, so all that is told of
# it is told here.
#
# The environment holds the process's secrets, whose names must not matter: until tmux has them no variable is set, but in
# subshells. What tmux is given holds no text from outside, which it might expand.
#
# In the terminal a shell waits for the process, and tells of it through the FIFO ID.told. tmux would tell, too, but it
# misses ends (3.3a: one that comes while it writes to utmp), and when it is killed nobody knows.
not_started() {
	echo "$1 none" >&4
	echo "done $1" >&3
	exit 0
}
if ! command -v tmux >/dev/null; then
	echo 'tmux is missing' >&2
	not_started "$1"
fi
cd "${3%/*}" || not_started "$1"
exec 6<>"../../$8/$1.told" 7<"../../$8/$1.told"

# tmux may take a quarter of a second to resize a terminal. Opened so, a FIFO that nobody reads any more keeps nobody waiting.
tell_resized() {
	echo "[ -p $1 ] && echo resized 1<>$1; sleep 0.3; [ -p $1 ] && echo resized 1<>$1"
}

# One call, so that nothing is missed of a program that ends at once. It prints the server's pid when all has worked.
# Under gVisor's poll(2), which changes what it is given, tmux would run for ever where it should wait; it does not use that
# when there is EVENT_NOPOLL, which is not for the process.
set -- "$@" "$(unset TMUX TMUX_PANE; [ "$8" = in ] || export EVENT_NOPOLL=1; tmux -u -f /dev/null -S "$7" \
	set-option -s escape-time 10 \; set-option -s set-clipboard off \; set-option -g status off \; set-option -g mouse on \; \
	set-option -g default-terminal "$(kind_of_terminal tmux-256color screen-256color screen)" \; \
	set-option -g history-limit 50000 \; set-option -g assume-paste-time 0 \; set-option -g update-environment '' \; \
	if-shell -F "${8#in}" 'set-environment -gu EVENT_NOPOLL' \; \
	set-option -gq window-size latest \; set-option -gq allow-passthrough off \; \
	new-session -d -x "$5" -y "$4" -s "$6" -- sh "$2.pane" "$2" "${3%/*}/../../$8/$1.told" \; \
	pipe-pane "exec 8>../../$8/$1.told; echo open >&8; cat >>$1.stdout; echo closed >&8" \; \
	if-shell -F 1 'set-option -p remain-on-exit off' \; \
	if-shell -F "${8#in}" "set-hook -g window-layout-changed 'run-shell -b \"$(tell_resized "../../$8/$1.told")\"'" \; \
	display-message -p '#{pid}' 3>&- 4>&- 6>&- 7<&-)"

# What a terminal does that is closed. The process may lead a group of its own, or be in that of what waits for it.
hang_up() { kill -HUP "-$pid" || kill -HUP "-$group"; }

# gVisor's kernel tells nobody of a terminal's new size, so all in its session are told; most do not care.
tell_size() {
	size=$(stty size <"/proc/$group/fd/0")
	[ -n "$size" ] && [ "$size" = "$known_size" ] && return
	known_size=$size
	for place in /proc/[0-9]*; do
		read -r told <"$place/stat" && set -- ${told##*) } && [ "$4" = "$group" ] && kill -WINCH "${place#/proc/}"
	done
}

# Until the terminal is gone, or has been read to its end even though others still have it open: each answer is a turn of the
# server's loop, which reads from it, and so many turns empty whatever it can hold. A pane that stays when the process has
# ended, or has another one, would keep the journal open. A server that does not answer is ended by `pane.sh`, $2 its child.
#
# In gVisor sandboxes a client takes so long to start that one has all turns taken, which tmux can since 3.2.
drain() {
	turns=0 pane=''
	if [ "$3" = tty ]; then
		pane=$(take_turns "$1") && turns=64
	fi
	while [ "$turns" -lt 64 ] && pane=$(tmux -S "$1" display-message -p -t %0 '#{pane_pid} #{pane_dead}'); do
		turns=$((turns + 1))
	done
	case $pane in "$group 0" | '') ;; *) tmux -S "$1" kill-server ;; esac
	kill -9 "$group" "$2"
}

take_turns() (
	server=$1 turns=64
	set -- display-message -p -t %0 '#{pane_pid} #{pane_dead}'
	while [ "$((turns -= 1))" -gt 0 ]; do
		set -- run-shell -d 0.001 \; "$@"
	done
	tmux -S "$server" "$@"
)

if [ -z "$9" ]; then # it has not, or a program that ran already has ended the server
	exec 6>&-
	tmux -S "$7" kill-server 2>/dev/null
fi

known_size="$4 $5"
# When nobody has the FIFO open any more, the process has ended, and what it wrote is in the journal.
pid='' group='' how=''
while IFS= read -r word <&7; do
	case $word in
	open) exec 6>&- ;; # until then, it may just not have been opened yet
	'run '*[!0-9.]*) ;;
	'run '*.*)
		group=${word#*.} pid=${word#run } pid=${pid%%.*}
		echo "pid $1 $pid.$group" >&3
		echo "$1 +$pid" >&4
		[ -n "$9" ] || hang_up
		;;
	'exit '*[!0-9\ ]*) ;;
	'exit '*)
		how=${word#exit }
		how=${how%% *}
		drain "$7" "${word##* }" "$8"
		;;
	resized) tell_size ;;
	stuck) case $9 in '' | 0* | 1 | *[!0-9]*) ;; *) kill -9 "$9" ;; esac ;; # from the daemon: it was killed, but stays
	closed) [ -n "$how" ] || tmux -S "$7" has-session || hang_up ;;
	esac
done 2>/dev/null
[ -S "$7" ] && tmux -S "$7" kill-server 2>/dev/null # unless it went with its last session, by itself
[ -n "$pid" ] || how=none
case $how in
none) ;;
'' | *[!0-9]*) # what waited for the process was killed, and so is the process
	kill -9 "-$pid" "$pid" "-$group"
	how=137
	;;
esac 2>/dev/null
echo "$1 $how" >&4
echo "done $1 $how" >&3
exit 0
