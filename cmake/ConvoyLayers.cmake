# convoy_add_layer(name [TORCH] [SOURCES ...] [DEPENDS ...]): one static library for one layer.
#
# DEPENDS names lower layers and outside targets, so the link graph is the layer graph of
# docs/overview.md. TORCH layers share one precompiled torch header.
function(convoy_add_layer name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS" ${ARGN})
  set(target convoy_${name})
  if(NOT arg_SOURCES)
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(${target} STATIC ${arg_SOURCES})
    set(scope PUBLIC)
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:convoy_warnings>)
    # Several sources are compiled as one: most of the time goes into headers they share. Names in
    # unnamed namespaces must therefore differ within a layer, or the source leaves the batch
    # (SKIP_UNITY_BUILD_INCLUSION).
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden
      UNITY_BUILD ${CONVOY_UNITY} UNITY_BUILD_BATCH_SIZE 8)
    if(arg_TORCH)
      convoy_reuse_torch_pch(${target})
    endif()
  endif()
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_DEPENDS})
  if(arg_TORCH)
    target_link_libraries(${target} ${scope} Convoy::torch)
  endif()
  set_property(GLOBAL APPEND PROPERTY CONVOY_LAYER_TARGETS ${target})
endfunction()
