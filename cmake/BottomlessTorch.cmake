# Finds the libtorch that pip installed for the interpreter in Python_EXECUTABLE (or the first on the path).
if(BOTTOMLESS_WITH_PYTHON)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
else()
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
endif()
if(NOT Torch_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE torch_missing ERROR_QUIET)
  if(torch_missing)
    message(FATAL_ERROR "no torch in ${Python_EXECUTABLE}: pip install torch==2.13.0 there, or set Torch_DIR")
  endif()
  list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
endif()
find_package(Torch REQUIRED)
if(NOT Torch_VERSION VERSION_EQUAL 2.13.0)
  message(WARNING "tested with torch 2.13.0; found ${Torch_VERSION}")
endif()
