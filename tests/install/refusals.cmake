# What does not fit is refused with a reason: another libtorch, no libtorch there, a wrong component.
include("${HERE}/common.cmake")

# refused(pattern ARGS...): configuring with ARGS fails, and says why.
function(refused pattern)
  file(REMOVE_RECURSE "${WORK}/refusals")
  execute_process(COMMAND ${bare} "${CMAKE_COMMAND}" -S "${HERE}/refusals" -B "${WORK}/refusals"
    -G Ninja "-DCMAKE_MAKE_PROGRAM=${NINJA}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_PREFIX_PATH=${PREFIX}" ${ARGN}
    OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE result)
  if(result EQUAL 0)
    message(FATAL_ERROR "configuring with ${ARGN} was not refused:\n${output}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " errors "${errors}")
  expect("${errors}" "${pattern}")
endfunction()

# A folder that looks like another libtorch.
set(other "${WORK}/other_libtorch")
file(WRITE "${other}/include/torch/csrc/api/include/torch/torch.h" "")
file(WRITE "${other}/include/torch/headeronly/version.h"
  "#define TORCH_VERSION_MAJOR 9\n#define TORCH_VERSION_MINOR 1\n#define TORCH_VERSION_PATCH 0\n")
file(WRITE "${other}/lib/libtorch_cpu.so" "")
file(WRITE "${other}/lib/libc10.so" "")
refused("built with libtorch [0-9.]+, but the one found in .*other_libtorch is 9.1.0"
  "-DCONVOY_TORCH=${other}")

file(WRITE "${other}/include/torch/headeronly/version.h"
  "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 4\n#define TORCH_VERSION_PATCH 1\n")
refused("is 2.4.1; Convoy needs 2.11 or newer" "-DCONVOY_TORCH=${other}")
refused("CONVOY_TORCH is '/nonexistent', which is no libtorch" -DCONVOY_TORCH=/nonexistent)
refused("components core and convoy, not 'gpu'" -DCOMPONENTS=gpu)
