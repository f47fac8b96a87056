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

# torch's headers take longer to read than most of what includes them takes to compile: they are read once, for every
# target that says bottomless_uses_torch_headers(). gcc takes a precompiled header only with the same flags, so executables
# are compiled as libraries are.
if(BOTTOMLESS_PRECOMPILE)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/torch_headers.cc CONTENT "")
  add_library(bottomless_torch_headers STATIC ${PROJECT_BINARY_DIR}/torch_headers.cc)
  target_link_libraries(bottomless_torch_headers PRIVATE ${TORCH_LIBRARIES})
  target_include_directories(bottomless_torch_headers SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
  target_precompile_headers(bottomless_torch_headers PRIVATE <torch/torch.h>)
  bottomless_cache_precompiled(bottomless_torch_headers)
endif()
function(bottomless_uses_torch_headers target)
  if(NOT BOTTOMLESS_PRECOMPILE)
    return()
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM bottomless_torch_headers)
  bottomless_cache_precompiled(${target})
endfunction()
