# Install rules, and the package for find_package(Convoy [COMPONENTS core]).
#
# Two export sets, so that a program that wants only Convoy::core never looks for libtorch.
include(CMakePackageConfigHelpers)
set(CONVOY_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Convoy")

# Layers are exported without their prefix: convoy_base is Convoy::base.
function(convoy_export_targets export)
  foreach(target IN LISTS ARGN)
    string(REGEX REPLACE "^convoy_" "" name "${target}")
    set_target_properties(${target} PROPERTIES EXPORT_NAME "${name}")
    install(TARGETS ${target} EXPORT ${export}
      ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endforeach()
  install(EXPORT ${export} NAMESPACE Convoy:: DESTINATION "${CONVOY_PACKAGE_DIR}")
endfunction()

set(_convoy_core_targets convoy_base convoy_control convoy_rendezvous convoy_core)
get_property(_convoy_torch_targets GLOBAL PROPERTY CONVOY_LAYER_TARGETS)
list(REMOVE_ITEM _convoy_torch_targets ${_convoy_core_targets})
convoy_export_targets(ConvoyCoreTargets ${_convoy_core_targets})
convoy_export_targets(ConvoyTargets ${_convoy_torch_targets} convoy)

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/convoy" "${PROJECT_BINARY_DIR}/include/convoy"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/ConvoyConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/ConvoyConfig.cmake" INSTALL_DESTINATION "${CONVOY_PACKAGE_DIR}")
# 0.x may break with any minor version.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ConvoyConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/ConvoyConfig.cmake"
  "${PROJECT_BINARY_DIR}/ConvoyConfigVersion.cmake" "${CMAKE_CURRENT_LIST_DIR}/ConvoyTorch.cmake"
  DESTINATION "${CONVOY_PACKAGE_DIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

if(CONVOY_BUILD_PROGRAMS)
  foreach(program IN ITEMS convoyrun train_gpt)
    if(TARGET ${program})
      # A program keeps the path of the libtorch it was linked with, so it runs from anywhere. Said
      # outright: INSTALL_RPATH_USE_LINK_PATH drops folders inside the project, as .deps is.
      set_target_properties(${program} PROPERTIES INSTALL_RPATH "${CONVOY_TORCH_ROOT}/lib")
      install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
    endif()
  endforeach()
endif()
