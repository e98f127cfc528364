"""A CNI plugin for tests: does what its configuration says. It is copied into a directory under several names.

``log`` is a file that gets a line for each call; ``veth`` is the address of a veth interface to make; with ``fail``
that command prints the text and fails, as long as the file ``repaired`` does not exist.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    config = json.load(sys.stdin)
    call = {name.removeprefix("CNI_").lower(): text for name, text in os.environ.items() if name.startswith("CNI_")}
    with Path(config["log"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps(call | {"config": config}) + "\n")
    works = Path(config.get("repaired", "/nonexistent")).exists()
    if not works and call["command"] in config.get("fail", {}):
        print(config["fail"][call["command"]])
        sys.exit(1)
    made = make_veth(call, config["veth"]) if "veth" in config else {}
    if call["command"] == "ADD":
        before = config.get("prevResult", {})
        print(json.dumps({"cniVersion": config["cniVersion"], **before, **made, "last": config["type"]}))


def make_veth(call: dict[str, str], address: str) -> dict[str, Any]:
    from pyroute2 import IPRoute
    from pyroute2.netns import setns

    name = f"v{call['containerid'][-8:]}"
    with IPRoute() as ip:
        if call["command"] == "DEL":
            for index in ip.link_lookup(ifname=name):  # none if the pod's namespace has ended
                ip.link("del", index=index)
            return {}
        with Path(call["netns"]).open("rb") as netns:
            ip.link("add", ifname=name, kind="veth", peer={"ifname": call["ifname"], "net_ns_fd": netns.fileno()})
    setns(call["netns"], flags=0)
    with IPRoute() as ip:
        [index] = ip.link_lookup(ifname=call["ifname"])
        host, _, length = address.partition("/")
        ip.addr("add", index=index, address=host, prefixlen=int(length))
        ip.link("set", index=index, state="up")
        mac = ip.get_links(index)[0].get("IFLA_ADDRESS")
    interfaces = [{"name": name, "mac": ""}, {"name": call["ifname"], "mac": mac, "sandbox": call["netns"]}]
    return {"interfaces": interfaces, "ips": [{"address": address, "interface": 1}]}


if __name__ == "__main__":
    main()
