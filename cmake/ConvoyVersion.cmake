# convoy/version.h from the project's version, and the commit it was built from.
#
# The commit stands in one generated .cpp of the base layer. A target that always runs rewrites that
# file only when the commit has changed, so a commit costs one small compile and the links after it.
configure_file("${CMAKE_CURRENT_LIST_DIR}/version.h.in"
  "${PROJECT_BINARY_DIR}/include/convoy/version.h" @ONLY)

function(convoy_add_build_info target)
  set(source "${PROJECT_BINARY_DIR}/generated/build_info.cpp")
  set(command "${CMAKE_COMMAND}"
    -D "SOURCE_DIR=${PROJECT_SOURCE_DIR}"
    -D "TEMPLATE=${PROJECT_SOURCE_DIR}/cmake/build_info.cpp.in"
    -D "OUTPUT=${source}" -D "VERSION=${PROJECT_VERSION}" -D "BUILD_TYPE=${CMAKE_BUILD_TYPE}"
    -D "COMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    -P "${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake")
  add_custom_target(convoy_build_info COMMAND ${command} BYPRODUCTS "${source}"
    COMMENT "Looking at the commit" VERBATIM)
  target_sources(${target} PRIVATE "${source}")
  set_source_files_properties("${source}" PROPERTIES GENERATED TRUE)
  add_dependencies(${target} convoy_build_info)
endfunction()
