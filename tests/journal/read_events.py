"""Prints the scalars that TensorBoard finds in a directory: name, how many, first and last step, values, last time.

    read_events.py DIRECTORY
"""

import itertools
import sys

from tensorboard.backend.event_processing import event_accumulator


def main():
    accumulator = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={event_accumulator.SCALARS: 0})
    accumulator.Reload()
    for name in accumulator.Tags()["scalars"]:
        events = accumulator.Scalars(name)
        runs = [f"{value}*{len(list(group))}" for value, group in itertools.groupby(event.value for event in events)]
        print(name, len(events), f"{events[0].step}..{events[-1].step}", *runs[:4], f"at {events[-1].wall_time:.0f}")


if __name__ == "__main__":
    main()
