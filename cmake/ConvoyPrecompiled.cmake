# The torch header, compiled once for the sources that need it.
#
# Reading the compiled header costs more than ATen/core/Tensor.h does from source (4 s against 3),
# and less than ATen/ATen.h, torch/nn or torch/torch.h does (up to 16 s). So a source gets it only
# if it includes one of those, directly or through headers of the project.

# convoy_needs_torch_header(out file): looks at the includes of `file`, at configure time.
function(convoy_needs_torch_header out file)
  get_property(known GLOBAL PROPERTY "CONVOY_NEEDS_TORCH_${file}")
  if(NOT "${known}" STREQUAL "")
    set(${out} ${known} PARENT_SCOPE)
    return()
  endif()
  set_property(GLOBAL PROPERTY "CONVOY_NEEDS_TORCH_${file}" FALSE)  # Ends circles.
  set(needs FALSE)
  file(STRINGS "${file}" includes REGEX "^#include [<\"]")
  cmake_path(GET file PARENT_PATH here)
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include [<\"]([^>\"]+)[>\"].*" "\\1" name "${include}")
    if(name MATCHES "^torch/|^ATen/ATen.h$")
      set(needs TRUE)
      break()
    endif()
    foreach(folder IN ITEMS "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
                            "${PROJECT_SOURCE_DIR}/tests" "${here}")
      if(EXISTS "${folder}/${name}")
        convoy_needs_torch_header(needs "${folder}/${name}")
        break()
      endif()
    endforeach()
    if(needs)
      break()
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY "CONVOY_NEEDS_TORCH_${file}" ${needs})
  set(${out} ${needs} PARENT_SCOPE)
endfunction()

# convoy_reuse_torch_pch(target [TEST]): lets the sources of a target that need a torch header use
# the compiled one: the whole of torch/torch.h for TEST, a part of it for others. It was compiled
# with -fPIC and hidden visibility, and gcc takes it only where the flags agree, so such targets are
# compiled so too (programs instead of with -fPIE).
function(convoy_reuse_torch_pch target)
  cmake_parse_arguments(arg "TEST" "" "" ${ARGN})
  set(pch convoy_torch_pch)
  if(arg_TEST)
    set(pch convoy_torch_test_pch)
    target_compile_options(${target} PRIVATE ${CONVOY_TEST_OPTIONS})
  endif()
  if(NOT CONVOY_TORCH_PCH)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set(users "")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    convoy_needs_torch_header(needs "${source}")
    if(needs)
      list(APPEND users "${source}")
    else()
      set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  if(NOT users)
    return()
  endif()
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# A library that owns a compiled header of these headers.
function(convoy_add_torch_pch name)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/${name}.cpp"
    CONTENT "// Exists to own a precompiled torch header.\n")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/generated/${name}.cpp")
  target_link_libraries(${name} PRIVATE Convoy::torch)
  target_compile_options(${name} PRIVATE
    $<TARGET_PROPERTY:convoy_warnings,INTERFACE_COMPILE_OPTIONS>)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

# The code of tests is not what is to be fast: compiling it unoptimised takes half the time.
set(CONVOY_TEST_OPTIONS $<$<CONFIG:Release>:-O0>)

if(CONVOY_TORCH_PCH)
  # Not torch/torch.h: gcc works off what a compiled header has left to instantiate in every source
  # that reads it, and all of torch/torch.h costs 9 s there, these few 4 s.
  convoy_add_torch_pch(convoy_torch_pch
    <ATen/ATen.h> <torch/types.h> <torch/nn/module.h> <torch/nn/pimpl.h> <torch/optim/optimizer.h>)
  convoy_add_torch_pch(convoy_torch_test_pch <torch/torch.h>)
  target_compile_options(convoy_torch_test_pch PRIVATE ${CONVOY_TEST_OPTIONS})
endif()
