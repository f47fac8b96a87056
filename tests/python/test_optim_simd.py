"""BOTTOMLESS_SIMD: which vector instructions the kernels of bottomless.optim use."""

import re

from helpers import run_python

STEP = """
import torch, bottomless.optim
parameter = torch.nn.Parameter(torch.linspace(-1, 1, 1000))
parameter.grad = torch.linspace(3, -2, 1000)
bottomless.optim.AdamW([parameter], state_dtype="8bit").step()
print(parameter.detach().view(torch.int32).tolist())
"""


def test_an_unknown_target_is_an_error_that_lists_those_there_are_and_all_of_them_give_the_same_bits():
    unknown = run_python(STEP, env={"BOTTOMLESS_SIMD": "MMX"})
    assert unknown.code != 0 and "ValueError" in unknown.err, unknown
    listed = re.search(r"'MMX' of BOTTOMLESS_SIMD: this processor and this build have (.+)", unknown.err)
    assert listed, unknown.err
    names = listed[1].split(", ")
    best, plainest = (run_python(STEP, env={"BOTTOMLESS_SIMD": name}) for name in (names[0], names[-1]))
    assert best.code == plainest.code == 0, plainest.err
    assert best.out == plainest.out
