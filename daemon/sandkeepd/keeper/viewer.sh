# A viewer of a terminal: the sandbox's own tmux client, on a terminal that the daemon made for it.
# $0 the socket  $1 the terminal, if it has none already  $2 its kind  $3 empty, or what makes it read-only
[ -z "$1" ] || exec 0<>"$1" 1>&0 || exit # the leader of a session, which this is, thereby gets the terminal as its own
exec env -i "PATH=$PATH" "HOME=$HOME" "TERM=$(kind_of_terminal "$2" xterm-256color)" tmux -u -S "$0" attach-session $3 -t '$0'
