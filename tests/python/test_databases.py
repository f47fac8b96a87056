"""A few samples of every entry of torch's operator, module and optimizer databases, and small models of 90 architectures.

All samples of every operator: .venv/bin/python tests/python/operator_database.py operators --samples 0
"""

import pathlib
import sys

import pytest

from helpers import run

HERE = pathlib.Path(__file__).parent

RUNS = {
    "operators-first": "operator_database.py operators --part 0/2 --samples 2",
    "operators-second": "operator_database.py operators --part 1/2 --samples 2",
    "modules": "operator_database.py modules --samples 2",
    "optimizers": "operator_database.py optimizers --samples 6",
    "architectures": "architectures.py",
}


@pytest.mark.parametrize("name", RUNS)
def test_same_bits(name):
    script, *options = RUNS[name].split()
    outcome = run([sys.executable, HERE / script, *options])
    print(outcome.out)
    assert outcome.code == 0, outcome.out + outcome.err
