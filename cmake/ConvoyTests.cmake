# convoy_add_test(name [TORCH] LABELS ... SOURCES ... DEPENDS ... [TIMEOUT s] [PROCESSORS n]):
# one test binary; every Catch2 case in it becomes one ctest entry.
find_package(Catch2 REQUIRED)
include(Catch)

add_library(convoy_catch_main STATIC "${PROJECT_SOURCE_DIR}/tests/support/catch_main.cpp")
target_link_libraries(convoy_catch_main PUBLIC Catch2::Catch2)
target_include_directories(convoy_catch_main PUBLIC "${PROJECT_SOURCE_DIR}/tests")

function(convoy_add_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT;PROCESSORS" "LABELS;SOURCES;DEPENDS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  set(target test_${name})
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE convoy_catch_main convoy_warnings Threads::Threads ${arg_DEPENDS})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  if(arg_TORCH)
    convoy_reuse_torch_pch(${target})
  endif()
  catch_discover_tests(${target}
    TEST_PREFIX "${name}: " DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS})
endfunction()
