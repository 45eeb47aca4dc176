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
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
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

# Lets a target use the precompiled torch header. It was compiled with -fPIC, and gcc takes it only
# where the flags agree, so programs are compiled with -fPIC too instead of -fPIE.
function(convoy_reuse_torch_pch target)
  if(NOT CONVOY_TORCH_PCH)
    return()
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM convoy_torch_pch)
endfunction()

# The torch header, compiled once for all torch layers and tests of this build.
if(CONVOY_TORCH_PCH)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/torch_pch.cpp"
    CONTENT "// Exists to own the precompiled torch header.\n")
  add_library(convoy_torch_pch OBJECT EXCLUDE_FROM_ALL
    "${PROJECT_BINARY_DIR}/generated/torch_pch.cpp")
  target_link_libraries(convoy_torch_pch PRIVATE Convoy::torch)
  target_compile_options(convoy_torch_pch PRIVATE
    $<TARGET_PROPERTY:convoy_warnings,INTERFACE_COMPILE_OPTIONS>)
  set_target_properties(convoy_torch_pch PROPERTIES CXX_VISIBILITY_PRESET hidden)
  target_precompile_headers(convoy_torch_pch PRIVATE <torch/torch.h>)
endif()
