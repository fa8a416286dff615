"""tlspyo's relay for `transport.py`: one endpoint sends 1 KB messages to another; its own environment."""

import json
import sys
import time

from tlspyo import Endpoint, Relay

PORT, LOCAL = 7891, (7892, 7893)


def main() -> None:
    limit_s = float(sys.argv[1])
    common = {"password": "benchmark", "security": None}
    relay = Relay(port=PORT, accepted_groups=None, local_com_port=7890, **common)
    ends = [
        Endpoint(ip_server="127.0.0.1", port=PORT, groups=group, local_com_port=local, **common)
        for group, local in (("sender", LOCAL[0]), ("receiver", LOCAL[1]))
    ]
    time.sleep(2.0)
    sender, receiver = ends
    payload, count = b"x" * 1024, 20_000
    begun, got = time.perf_counter(), 0
    for _ in range(count):
        sender.broadcast(payload, "receiver")
    while got < count and time.perf_counter() - begun < limit_s:
        got += len(receiver.receive_all(blocking=False))
        time.sleep(0.001)
    took = time.perf_counter() - begun
    print(json.dumps({"delivered": got, "sent": count, "seconds": took}), flush=True)
    for end in (*ends, relay):
        end.stop()


if __name__ == "__main__":
    main()
