"""Signals that come while operators run: in the backward pass, in the optimizer's step, and every millisecond."""

import os
import signal
import sys
import threading

from pressure import Training, report, run_case


class Sender:
    """Sends a signal from another thread as soon as a phase of the training has begun."""

    def __init__(self, training, phase, number):
        self.begun = threading.Event()
        self.number = number
        self.thread = threading.Thread(target=self.send)
        self.thread.start()
        if phase == "backward":
            training.amid_backward = self.begun.set
        else:
            training.amid_step = self.begun.set

    def send(self):
        self.begun.wait()
        os.kill(os.getpid(), self.number)


def trained():
    training = Training().run()
    report()
    print(training.digest(), flush=True)
    return training


def default(name, phase):
    """SIGTERM ends the process on the spot; SIGINT is a KeyboardInterrupt that nobody catches."""
    training = trained()
    Sender(training, phase, signal.Signals[name])
    while True:
        training.step()


def caught(phase):
    """After a KeyboardInterrupt amid a step, all else is as it was."""
    training = trained()
    bystander = Training(1).run()
    sender = Sender(training, phase, signal.SIGINT)
    try:
        while True:
            training.step()
    except KeyboardInterrupt:
        print("interrupted")
    sender.thread.join()
    print(bystander.run().digest(), Training(2).run().digest())


def handled(name):
    """A handler that returns: nothing may change."""
    received = []
    signal.signal(signal.Signals[name], lambda number, frame: received.append(number))
    training = trained()
    for phase in ["backward", "step"] * 3:
        sender = Sender(training, phase, signal.Signals[name])
        training.step()
        sender.thread.join()
    print(len(received), training.digest())


def handler_exits(name):
    signal.signal(signal.Signals[name], lambda number, frame: sys.exit(40 + number))
    training = trained()
    Sender(training, "backward", signal.Signals[name])
    while True:
        training.step()


def every_millisecond():
    """Every system call of ours is interrupted again and again: Python installs handlers without SA_RESTART."""
    received = []
    signal.signal(signal.SIGALRM, lambda number, frame: received.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    training = trained().run(4)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(len(received) > 20, training.digest())


if __name__ == "__main__":
    run_case(globals())
