# This repository as a folder of another project: nothing but what is asked for is built.
include("${HERE}/common.cmake")
configure(subdirectory "-DCONVOY_SOURCE=${SOURCE}" "-DCONVOY_TORCH=${TORCH}")
build(subdirectory --target core)
run(output ${bare} "${WORK}/subdirectory/core")
expect("${output}" "rank 0 of 1 says hello")
