# Finds libtorch and makes the imported target Convoy::torch (the CPU libraries only).
#
# Torch's own config file wants CUDA at configure time when the libtorch at hand was built for it;
# Convoy links libtorch_cpu and libc10 only, so it looks for the folder and makes its own target.
# Looked at in order: Torch_DIR, CMAKE_PREFIX_PATH, then what scripts/setup put under .deps.
if(TARGET Convoy::torch)
  return()
endif()

set(_convoy_torch_hints "")
if(Torch_DIR)
  list(APPEND _convoy_torch_hints "${Torch_DIR}/../../..")
endif()
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _convoy_torch_hints "${_prefix}" "${_prefix}/torch")
endforeach()
if(DEFINED ENV{CMAKE_PREFIX_PATH})
  string(REPLACE ":" ";" _convoy_env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(_prefix IN LISTS _convoy_env_prefixes)
    list(APPEND _convoy_torch_hints "${_prefix}" "${_prefix}/torch")
  endforeach()
endif()
if(DEFINED ENV{CONVOY_DEPS})
  list(APPEND _convoy_torch_hints "$ENV{CONVOY_DEPS}/libtorch/torch")
endif()
list(APPEND _convoy_torch_hints "${CMAKE_CURRENT_LIST_DIR}/../.deps/libtorch/torch")

find_path(CONVOY_TORCH_ROOT include/torch/csrc/api/include/torch/torch.h
  HINTS ${_convoy_torch_hints} NO_DEFAULT_PATH
  DOC "Folder of libtorch: holds include/ and lib/")
if(NOT CONVOY_TORCH_ROOT)
  message(FATAL_ERROR
    "Convoy needs libtorch 2.11 or newer and found none.\n"
    "Run scripts/setup, or pass -DCMAKE_PREFIX_PATH=/path/to/libtorch")
endif()
find_library(CONVOY_TORCH_CPU torch_cpu HINTS "${CONVOY_TORCH_ROOT}/lib" NO_DEFAULT_PATH REQUIRED)
find_library(CONVOY_C10 c10 HINTS "${CONVOY_TORCH_ROOT}/lib" NO_DEFAULT_PATH REQUIRED)

add_library(Convoy::c10 SHARED IMPORTED GLOBAL)
set_target_properties(Convoy::c10 PROPERTIES IMPORTED_LOCATION "${CONVOY_C10}")
add_library(Convoy::torch SHARED IMPORTED GLOBAL)
set_target_properties(Convoy::torch PROPERTIES
  IMPORTED_LOCATION "${CONVOY_TORCH_CPU}"
  INTERFACE_INCLUDE_DIRECTORIES
    "${CONVOY_TORCH_ROOT}/include;${CONVOY_TORCH_ROOT}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES Convoy::c10)
# libtorch_cpu of a GPU build needs the CUDA runtime and CUPTI, which it finds by its own rpath; the
# linker must not insist on seeing them.
target_link_options(Convoy::torch INTERFACE -Wl,--allow-shlib-undefined)
