# The package installs with pip and works. By default it is made of what has been built; with BOTTOMLESS_PIP_FROM_SOURCE in the
# environment `pip install .` builds all of it once more.
file(REMOVE_RECURSE ${work} ${work}-wheel)
if(DEFINED ENV{BOTTOMLESS_PIP_FROM_SOURCE})
  set(package ${source})
else()
  execute_process(COMMAND ${python} ${source}/scripts/make_wheel.py ${build} ${work}-wheel
                  OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
execute_process(
  COMMAND ${python} -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --target ${work}
          ${package} COMMAND_ERROR_IS_FATAL ANY)
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
