"""Threads that end before the tensors they made, after the main thread, or never."""

import concurrent.futures
import sys
import threading

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from pressure import Training, digest, numbered, report, run_case


def daemon_amid_many_operators():
    """The interpreter ends while a thread goes from one operator to the next."""
    busy = threading.Event()

    def train():
        training = Training().run()
        while True:
            training.step()
            busy.set()

    threading.Thread(target=train, daemon=True).start()
    busy.wait()
    report()
    print("main is done", flush=True)


def daemon_in_one_long_operator():
    """The process ends before the operator does."""
    tensors = numbered()
    Training().run()
    busy = threading.Event()

    def compute():
        points = torch.stack([tensor[:1024].float() for tensor in tensors]).repeat(64, 1) / (1 << 22)
        busy.set()
        while True:
            torch.cdist(points, points, p=2.5)

    threading.Thread(target=compute, daemon=True).start()
    busy.wait()
    report()
    print("main is done", flush=True)


def outlives_main():
    def train():
        threading.main_thread().join()
        print(Training().run().digest())
        report()

    threading.Thread(target=train).start()
    print("main is done", flush=True)


def ends_before_its_tensors():
    """Tensors, a graph, and what each thread kept for itself."""
    own, results = threading.local(), []

    def make(seed):
        own.tensors = numbered(4)
        training = Training(seed)
        loss = training.model(torch.ones(4, 512)).square().mean()
        results.append((seed, training, loss, digest(own.tensors)))

    for seed in range(3):
        thread = threading.Thread(target=make, args=(seed,))
        thread.start()
        thread.join()
    for seed, training, loss, seen in results:
        loss.backward()
        training.update()
        print(seed, seen, training.digest())
    report()


def four_at_once():
    """Threads that take turns as often as the interpreter lets them."""
    sys.setswitchinterval(1e-6)
    torch.set_num_threads(1)
    trainings = [Training(seed, layers=3) for seed in range(4)]
    threads = [threading.Thread(target=training.run, args=(4,)) for training in trainings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for training in trainings:
        print(training.digest())
    report()


def of_numpy_and_a_pool():
    """Threads of numpy's own linear algebra, asked for by a pool that nobody shuts down, read what is away."""
    matrices = [torch.full((512, 512), n / 1000) for n in range(12)]
    Training().run()
    pool = concurrent.futures.ThreadPoolExecutor(4)
    products = pool.map(lambda matrix: numpy.matmul(matrix.numpy(), matrices[1].numpy()), matrices)
    print([float(product[0, 0]).hex() for product in products])
    report()


class Rows(Dataset):
    """Rows of tensors that are away, as numpy sees them."""

    def __init__(self):
        self.tensors = numbered()

    def __len__(self):
        return len(self.tensors)

    def __getitem__(self, index):
        return self.tensors[index].numpy()[:512] / (1 << 22)


def of_a_data_loader(ending):
    """Its workers and the threads that feed them are still there when the process ends."""
    training = Training()
    loader = DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)
    for _ in range(3):
        training.step(next(batches).float())
    report()
    print(training.digest(), flush=True)
    if ending == "exception":
        raise ValueError(len(loader))


if __name__ == "__main__":
    run_case(globals())
