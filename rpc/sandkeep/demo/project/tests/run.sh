#!/bin/sh
echo "test 1: the lamp turns      ok"
echo "test 2: the horn sounds     FAILED: no wind" >&2
exit 3
