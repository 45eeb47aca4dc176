# Uses ccache and mold where they are installed; both only make builds faster.
find_program(CONVOY_CCACHE ccache)
if(CONVOY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The precompiled torch header needs these relaxations; without them every use of it is a miss.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "${CONVOY_CCACHE}")
endif()
find_program(CONVOY_MOLD mold)
if(CONVOY_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()
