#!/bin/sh
# Flash as often as the first argument says, and say which flash it is.
flash=1
while [ "$flash" -le "$1" ]; do
    echo "flash $flash of $1"
    flash=$((flash + 1))
    sleep 0.2
done
echo "the lamp is out" >&2
