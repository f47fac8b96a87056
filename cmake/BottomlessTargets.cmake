# One library per part. The link line is the dependency rule: a part sees only the parts it names.
add_library(bottomless_flags INTERFACE)
target_include_directories(
  bottomless_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_options(bottomless_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  target_compile_options(bottomless_flags INTERFACE -Wno-restrict) # wrong about "text" + std::string: gcc's bug 105651
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(bottomless_flags INTERFACE -Wthread-safety)
endif()
if(BOTTOMLESS_WERROR)
  target_compile_options(bottomless_flags INTERFACE -Werror)
endif()
if(BOTTOMLESS_SANITIZE)
  target_compile_options(bottomless_flags INTERFACE -fsanitize=${BOTTOMLESS_SANITIZE} -fno-omit-frame-pointer
                                                    -fno-sanitize-recover=undefined)
  # gcc's list leaves it out, clang's does not: files of others may hold any number, and the JSON library converts it.
  target_compile_options(bottomless_flags INTERFACE -fno-sanitize=float-cast-overflow)
  # gcc warns of what cannot be in std::optional and std::string that it has instrumented; clang looks at all of it, too.
  target_compile_options(bottomless_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-error>)
  target_link_options(bottomless_flags INTERFACE -fsanitize=${BOTTOMLESS_SANITIZE})
endif()

# Sources of one target are compiled some at a time, so that what they include is read once for all of them: names in
# anonymous namespaces are unique within a folder. Off where single files are edited and analysed (preset dev).
option(BOTTOMLESS_UNITY "Compile several sources of a part at a time" ON)
function(bottomless_unity target at_a_time)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${BOTTOMLESS_UNITY} UNITY_BUILD_BATCH_SIZE ${at_a_time})
endfunction()

# bottomless_part(NAME SOURCES ... USES part ... LINKS library ...)
function(bottomless_part name)
  cmake_parse_arguments(PART "" "" "SOURCES;USES;LINKS" ${ARGN})
  add_library(bottomless_${name} STATIC ${PART_SOURCES})
  bottomless_unity(bottomless_${name} 6)
  target_link_libraries(bottomless_${name} PUBLIC bottomless_flags Threads::Threads)
  foreach(used ${PART_USES})
    target_link_libraries(bottomless_${name} PUBLIC bottomless_${used})
  endforeach()
  target_link_libraries(bottomless_${name} PRIVATE ${PART_LINKS})
endfunction()

# What nearly every test includes, read once.
option(BOTTOMLESS_PRECOMPILE "Precompile headers of others that most sources of a kind include" ON)
function(bottomless_uses_test_headers target)
  if(NOT BOTTOMLESS_PRECOMPILE)
    return()
  endif()
  if(NOT TARGET bottomless_test_headers)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_headers.cc CONTENT "int main() {}\n")
    add_executable(bottomless_test_headers EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/test_headers.cc)
    target_link_libraries(bottomless_test_headers PRIVATE bottomless_flags GTest::gtest)
    target_precompile_headers(
      bottomless_test_headers PRIVATE <gtest/gtest.h> <atomic> <chrono> <functional> <future> <map> <memory> <optional>
      <random> <string> <thread> <vector>)
    bottomless_cache_precompiled(bottomless_test_headers)
  endif()
  target_precompile_headers(${target} REUSE_FROM bottomless_test_headers)
  bottomless_cache_precompiled(${target})
endfunction()
# What ccache wants of compilers that use precompiled headers.
function(bottomless_cache_precompiled target)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
                                           $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>)
endfunction()

# bottomless_test(NAME SOURCES ... USES part ...): one test program for one part
function(bottomless_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  bottomless_uses_test_headers(${name})
  target_link_libraries(${name} PRIVATE bottomless_flags GTest::gtest_main)
  foreach(used ${TEST_USES})
    target_link_libraries(${name} PRIVATE bottomless_${used})
  endforeach()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endfunction()
