"""A network of its own for each rank: namespaces of the kernel, joined by a switch through links of limited rate.

Nothing here has a name outside of it: a namespace lives as long as the process that holds it, and the holders end when the
pipe to this process does, so that nothing is left over even after kill -9.
"""

import pathlib
import shutil
import subprocess

INTERFACE = "eth0"


class NotPermitted(Exception):
    """Networks cannot be made here; says why."""


def interface_bytes(process="self"):
    """What the kernel has counted on the link of a process: received and sent, headers and all."""
    for line in pathlib.Path(f"/proc/{process}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[0]), int(numbers.split()[8])
    raise LookupError(f"process {process} has no interface {INTERFACE}")


class Network:
    """As many machines as there are ranks, as far as the network can tell."""

    def __init__(self, ranks, rate="200mbit"):
        self._holders = []
        try:
            self._switch = self._hold()
            self._inside(self._switch, "ip link add switch type bridge", "ip link set switch up")
            self._machines = [self._join(rank, rate) for rank in range(ranks)]
        except BaseException:
            self.close()
            raise

    def environment(self):
        """For all ranks, over what outcomes_of_ranks() says."""
        return {"MASTER_ADDR": self._address(0), "GLOO_SOCKET_IFNAME": INTERFACE}

    def prefixes(self):
        """By rank, the words before a command that have it run there."""
        return [self._prefix(machine) for machine in self._machines]

    def processes(self):
        """Those that hold the namespaces, the switch's first."""
        return [self._switch, *self._machines]

    def received(self, rank):
        return interface_bytes(self._machines[rank])[0]

    def cut(self, rank):
        """Pulls the plug, at the switch: the rank itself sees a link without a carrier."""
        self._inside(self._switch, f"ip link set port{rank} down")

    def close(self):
        for holder in self._holders:
            holder.stdin.close()
        for holder in self._holders:
            holder.wait()
            holder.stdout.close()
            holder.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def _hold(self):
        """A new namespace; the number of the process that holds it."""
        for tool in ("unshare", "nsenter", "ip", "tc"):
            if shutil.which(tool) is None:
                raise NotPermitted(f"no {tool} on PATH")
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec cat"], **pipes)
        self._holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            raise NotPermitted(f"network namespaces: {holder.stderr.read().strip()}")
        return holder.pid

    def _join(self, rank, rate):
        machine = self._hold()
        _run(f"ip link add {INTERFACE} netns {machine} type veth peer name port{rank} netns {self._switch}")
        shape = f"root tbf rate {rate} burst 64kb latency 50ms"
        self._inside(
            self._switch, f"ip link set port{rank} master switch up", f"tc qdisc add dev port{rank} {shape}"
        )
        self._inside(
            machine, "ip link set lo up", f"ip address add {self._address(rank)}/24 dev {INTERFACE}",
            f"ip link set {INTERFACE} up", f"tc qdisc add dev {INTERFACE} {shape}",
        )  # fmt: skip
        return machine

    def _inside(self, process, *commands):
        for command in commands:
            _run(" ".join(self._prefix(process)) + " " + command)

    @staticmethod
    def _prefix(process):
        return ["nsenter", f"--net=/proc/{process}/ns/net"]

    @staticmethod
    def _address(rank):
        return f"10.77.0.{rank + 1}"


def _run(command):
    outcome = subprocess.run(command.split(), capture_output=True, text=True)
    if outcome.returncode != 0:
        raise NotPermitted(f"{command}: {outcome.stderr.strip()}")
