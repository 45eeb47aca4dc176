# Finds libtorch and makes the imported target Convoy::torch (the CPU libraries only). Also
# installed: an installed Convoy finds libtorch by this same file.
#
# Torch's own config file wants CUDA at configure time when the libtorch at hand was built for it;
# Convoy links libtorch_cpu and libc10 only, so it looks for the folder and makes its own target.
#
# Looked at in order, each as a CMake and as an environment variable:
#   CONVOY_TORCH       the folder of libtorch, with include/ and lib/
#   Torch_DIR          <libtorch>/share/cmake/Torch
#   CMAKE_PREFIX_PATH  a prefix that is a libtorch, or holds one as torch/
# then what was found at the last configure, then what scripts/setup put under CONVOY_DEPS or .deps,
# then CONVOY_TORCH_BUILT_WITH, which the installed package sets.
if(TARGET Convoy::torch)
  return()
endif()
set(CONVOY_TORCH_OLDEST 2.11)

# Sets `out` to the folder of the libtorch at `folder` (or in its torch/), or to "".
function(convoy_torch_at folder out)
  set(${out} "" PARENT_SCOPE)
  foreach(root IN ITEMS "${folder}" "${folder}/torch")
    if(EXISTS "${root}/include/torch/csrc/api/include/torch/torch.h" AND
       EXISTS "${root}/lib/libtorch_cpu.so" AND EXISTS "${root}/lib/libc10.so")
      file(REAL_PATH "${root}" root)
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Sets `out` to "major.minor.patch", from the headers.
function(convoy_torch_version root out)
  foreach(header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/${header}")
      file(READ "${root}/include/${header}" text)
      if(text MATCHES "#define TORCH_VERSION_MAJOR ([0-9]+)")
        set(version "${CMAKE_MATCH_1}")
        string(REGEX MATCH "#define TORCH_VERSION_MINOR ([0-9]+)" _ "${text}")
        string(APPEND version ".${CMAKE_MATCH_1}")
        string(REGEX MATCH "#define TORCH_VERSION_PATCH ([0-9]+)" _ "${text}")
        set(${out} "${version}.${CMAKE_MATCH_1}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  message(FATAL_ERROR "the libtorch in ${root} does not say its version (no torch/version.h)")
endfunction()

# A folder that was named must be a libtorch; a prefix may be.
set(_convoy_torch_root "")
foreach(_value IN ITEMS "${CONVOY_TORCH}" "$ENV{CONVOY_TORCH}")
  if(NOT _convoy_torch_root AND _value)
    convoy_torch_at("${_value}" _convoy_torch_root)
    if(NOT _convoy_torch_root)
      message(FATAL_ERROR "CONVOY_TORCH is '${_value}', which is no libtorch: "
        "there is no include/torch and lib/libtorch_cpu.so in it")
    endif()
  endif()
endforeach()
foreach(_value IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
  if(NOT _convoy_torch_root AND _value)
    convoy_torch_at("${_value}/../../.." _convoy_torch_root)
    if(NOT _convoy_torch_root)
      message(FATAL_ERROR "Torch_DIR is '${_value}', which belongs to no libtorch: there is no "
        "../../../include/torch and ../../../lib/libtorch_cpu.so")
    endif()
  endif()
endforeach()
set(_convoy_torch_others "$ENV{CMAKE_PREFIX_PATH}")
string(REPLACE ":" ";" _convoy_torch_others "${_convoy_torch_others}")
list(PREPEND _convoy_torch_others ${CMAKE_PREFIX_PATH})
list(APPEND _convoy_torch_others "${CONVOY_TORCH_ROOT}")
if(DEFINED ENV{CONVOY_DEPS})
  list(APPEND _convoy_torch_others "$ENV{CONVOY_DEPS}/libtorch")
endif()
list(APPEND _convoy_torch_others "${CMAKE_CURRENT_LIST_DIR}/../.deps/libtorch"
  "${CONVOY_TORCH_BUILT_WITH}")
foreach(_value IN LISTS _convoy_torch_others)
  if(NOT _convoy_torch_root AND _value)
    convoy_torch_at("${_value}" _convoy_torch_root)
  endif()
endforeach()
if(NOT _convoy_torch_root)
  message(FATAL_ERROR
    "Convoy needs libtorch ${CONVOY_TORCH_OLDEST} or newer and found none.\n"
    "Run scripts/setup, or pass -DCONVOY_TORCH=/path/to/libtorch")
endif()
set(CONVOY_TORCH_ROOT "${_convoy_torch_root}" CACHE INTERNAL "The libtorch found last")

convoy_torch_version("${CONVOY_TORCH_ROOT}" _convoy_torch_version)
set(CONVOY_TORCH_VERSION "${_convoy_torch_version}" CACHE INTERNAL "Version of that libtorch")
if(CONVOY_TORCH_VERSION VERSION_LESS CONVOY_TORCH_OLDEST)
  message(FATAL_ERROR "the libtorch in ${CONVOY_TORCH_ROOT} is ${CONVOY_TORCH_VERSION}; "
    "Convoy needs ${CONVOY_TORCH_OLDEST} or newer")
endif()
message(STATUS "libtorch ${CONVOY_TORCH_VERSION}: ${CONVOY_TORCH_ROOT}")

add_library(Convoy::c10 SHARED IMPORTED GLOBAL)
set_target_properties(Convoy::c10 PROPERTIES IMPORTED_LOCATION "${CONVOY_TORCH_ROOT}/lib/libc10.so")
add_library(Convoy::torch SHARED IMPORTED GLOBAL)
set_target_properties(Convoy::torch PROPERTIES
  IMPORTED_LOCATION "${CONVOY_TORCH_ROOT}/lib/libtorch_cpu.so"
  INTERFACE_INCLUDE_DIRECTORIES
    "${CONVOY_TORCH_ROOT}/include;${CONVOY_TORCH_ROOT}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES Convoy::c10)
# libtorch_cpu of a GPU build needs the CUDA runtime and CUPTI, which it finds by its own rpath; the
# linker must not insist on seeing them.
target_link_options(Convoy::torch INTERFACE -Wl,--allow-shlib-undefined)
