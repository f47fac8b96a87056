# `pip install .` builds the package against the torch that is installed, and what it installs works.
file(REMOVE_RECURSE ${work})
execute_process(
  COMMAND ${python} -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --target ${work}
          ${source} COMMAND_ERROR_IS_FATAL ANY)
file(WRITE ${work}/try.py "
import sys
import torch, bottomless
assert bottomless.__file__.startswith(sys.argv[1]), bottomless.__file__
with bottomless.limit('16MiB', sys.argv[1]) as runtime:
    tensors = [torch.full((1 << 18,), float(i)) for i in range(32)]
    assert sum(t.sum().item() for t in tensors) == 31 * 16 * (1 << 18)
    assert runtime.stats()['evictions'] > 0
")
execute_process(COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${work} ${python} ${work}/try.py ${work}
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${work}/bin/bottomless --version COMMAND_ERROR_IS_FATAL ANY)
