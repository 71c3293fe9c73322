"""Count, and keep the number in memory only: what runs in the sandbox. Each line is a number and when it was printed.

python counter.py INTERVAL_S
"""

import itertools
import sys
import time

for number in itertools.count(1):
    print(number, time.time(), flush=True)
    time.sleep(float(sys.argv[1]))
