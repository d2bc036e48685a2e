"""Killing workers of a test cluster: only processes that descend from its own nodes."""

import os
import random
import signal
import threading
import time

import psutil


def busy(cluster):
    """Worker processes that have a block in hand."""
    found = []
    for node in cluster.list_all_nodes():
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in raylet.children(recursive=True):
            try:
                if "_attend" in "".join(process.cmdline()):
                    found.append(process.pid)
            except psutil.Error:
                continue
    return found


class Killer(threading.Thread):
    """Kill ``count`` busy workers, each at a random moment."""

    def __init__(self, cluster, count, most=0.5, seed=0):
        super().__init__(daemon=True)
        self.cluster, self.count, self.most, self.random = cluster, count, most, random.Random(seed)
        self.killed, self.over = 0, threading.Event()

    def run(self):
        while self.killed < self.count and not self.over.is_set():
            self.over.wait(self.random.uniform(0.0, self.most))
            for pid in self.random.sample(workers := busy(self.cluster), len(workers))[:1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:
                    pass
            time.sleep(0.01)
