"""Script: one worker on a result store, in a process of its own.

store_worker.py claim STORE NAME KEYS GO   claim and finish every free key once the file GO exists; print those it got
store_worker.py hold STORE NAME KEY LEASE  claim a key and renew it until the process is killed
store_worker.py write STORE NAME KEYS      claim and finish keys one after the other, with long results
"""

import json
import random
import sys
import time
from pathlib import Path

from spectail.experiments.store import open_store


def claim(store, name, count, go):
    keys = [f"key{number}" for number in range(int(count))]
    # neighbours meet on the same keys: nearly the same order for everybody
    keys.sort(key=lambda key: int(key[3:]) + random.Random(name + key).uniform(0, 3))
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.001)
    mine = []
    for key in keys:
        if store.claim(key, {"key": key}, name, lease=300):
            mine.append(key)
            assert store.finish(key, name, {"by": name}, "folder")
    print(json.dumps(mine), flush=True)


def hold(store, name, key, lease):
    got = store.claim(key, {}, name, lease=float(lease))
    print("held" if got else "refused", flush=True)
    while store.renew(key, name, lease=float(lease)):
        time.sleep(float(lease) / 10)
    print("taken over", flush=True)


def write(store, name, count):
    print("ready", flush=True)
    for number in range(int(count)):
        key = f"key{number}"
        assert store.claim(key, {"number": number}, name)
        assert store.finish(key, name, {"number": number, "per_class": [number + 0.5] * 5000}, f"folder{number}")
    print("written", flush=True)


if __name__ == "__main__":
    command, where, *rest = sys.argv[1:]
    {"claim": claim, "hold": hold, "write": write}[command](open_store(where), *rest)
