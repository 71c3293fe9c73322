#!/bin/sh
# Flash as often as the first argument says, or else until there is a file called dawn, for ten minutes at most.
flash=1
while [ "$flash" -le "${1:-3000}" ] && [ ! -e dawn ]; do
    echo "flash $flash${1:+ of $1}"
    flash=$((flash + 1))
    sleep 0.2
done
echo "the lamp is out" >&2
