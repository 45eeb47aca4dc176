# convoy_add_test(name [TORCH] [UNITY] LABELS ... SOURCES ... DEPENDS ... [TIMEOUT s]
# [PROCESSORS n]): one test binary; every Catch2 case in it becomes one ctest entry.
find_package(Catch2 REQUIRED)

add_library(convoy_catch_main STATIC "${PROJECT_SOURCE_DIR}/tests/support/catch_main.cpp")
target_link_libraries(convoy_catch_main PUBLIC Catch2::Catch2)
target_include_directories(convoy_catch_main PUBLIC "${PROJECT_SOURCE_DIR}/tests")
# Catch2 itself is not under test, and takes minutes to compile with all checks.
target_compile_options(convoy_catch_main PRIVATE
  $<$<BOOL:${CONVOY_SANITIZE}>:-fno-sanitize=all> $<$<BOOL:${CONVOY_SANITIZE}>:-g0>)

# What the sanitizers' runtimes are told, and how much longer everything takes under them.
set(CONVOY_TEST_ENVIRONMENT "")
set(CONVOY_TEST_TIMEOUT_FACTOR 1)
set(_convoy_suppressions "${PROJECT_SOURCE_DIR}/cmake/suppressions")
if(CONVOY_SANITIZE STREQUAL "address")
  set(CONVOY_TEST_TIMEOUT_FACTOR 4)
  set(CONVOY_TEST_ENVIRONMENT
    "ASAN_OPTIONS=abort_on_error=0:strict_string_checks=1:detect_stack_use_after_return=1"
    "LSAN_OPTIONS=suppressions=${_convoy_suppressions}/lsan.txt:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1")
elseif(CONVOY_SANITIZE STREQUAL "thread")
  set(CONVOY_TEST_TIMEOUT_FACTOR 6)
  # One thread for libtorch's kernels: it was not compiled for the sanitizer, which sees no order
  # between the threads of a kernel and reports them.
  set(CONVOY_TEST_ENVIRONMENT
    "TSAN_OPTIONS=halt_on_error=1:suppressions=${_convoy_suppressions}/tsan.txt"
    "OMP_NUM_THREADS=1")
endif()

function(convoy_add_test name)
  if(CONVOY_TESTS AND NOT name IN_LIST CONVOY_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "TORCH;UNITY" "TIMEOUT;PROCESSORS" "LABELS;SOURCES;DEPENDS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  set(target test_${name})
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE
    convoy_catch_main convoy_warnings Threads::Threads ${arg_DEPENDS})
  target_include_directories(${target} PRIVATE
    "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  if(arg_UNITY AND CONVOY_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  endif()
  if(arg_TORCH)
    convoy_reuse_torch_pch(${target} TEST)
  else()
    target_compile_options(${target} PRIVATE ${CONVOY_TEST_OPTIONS})
  endif()
  add_dependencies(convoy_tests ${target})
  math(EXPR timeout "${arg_TIMEOUT} * ${CONVOY_TEST_TIMEOUT_FACTOR}")
  convoy_discover_cases(${target} "${name}: "
    LABELS "${arg_LABELS}" TIMEOUT ${timeout} PROCESSORS ${arg_PROCESSORS}
    ENVIRONMENT "${CONVOY_TEST_ENVIRONMENT}")
endfunction()

# Registers every case of a test binary with ctest, with these properties. The cases are listed
# after each link. (Catch2's own catch_discover_tests takes no list as a property, cuts names at
# semicolons, and an entry whose name Catch2 then does not find passes.)
function(convoy_discover_cases target prefix)
  set(properties "")
  math(EXPR last "${ARGC} - 1")
  foreach(i RANGE 2 ${last})  # By number: a value may be a list.
    string(APPEND properties " [==[${ARGV${i}}]==]")
  endforeach()
  set(cases "${CMAKE_CURRENT_BINARY_DIR}/${target}_cases.cmake")
  set(ctest_file "${CMAKE_CURRENT_BINARY_DIR}/${target}_ctest.cmake")
  file(CONFIGURE OUTPUT "${ctest_file}" @ONLY CONTENT [=[
function(convoy_case name spec)
  add_test("@prefix@${name}" "${convoy_binary}" --warn NoTests "${spec}")
  set_tests_properties("@prefix@${name}" PROPERTIES@properties@)
endfunction()
if(EXISTS "@cases@")
  include("@cases@")
else()
  add_test("@target@ is not built" "@target@")
endif()
]=])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${ctest_file}")
  add_custom_command(TARGET ${target} POST_BUILD BYPRODUCTS "${cases}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" -D "BINARY=$<TARGET_FILE:${target}>" -D "OUTPUT=${cases}"
      -P "${PROJECT_SOURCE_DIR}/cmake/list_cases.cmake")
endfunction()
