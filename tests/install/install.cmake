# Installs the build into an empty prefix.
include("${HERE}/common.cmake")
file(REMOVE_RECURSE "${PREFIX}")
run(output "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${PREFIX}")
foreach(file IN ITEMS bin/convoyrun bin/train_gpt include/convoy/convoy.h include/convoy/version.h)
  if(NOT EXISTS "${PREFIX}/${file}")
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()
