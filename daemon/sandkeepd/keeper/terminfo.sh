# The first of these kinds of terminal that is described here, or the last.
kind_of_terminal() (
	for kind; do
		for place in "$HOME/.terminfo" /etc/terminfo /lib/terminfo /usr/lib/terminfo /usr/share/terminfo; do
			[ -e "$place/${kind%"${kind#?}"}/$kind" ] && break 2
		done
	done
	echo "$kind"
)
