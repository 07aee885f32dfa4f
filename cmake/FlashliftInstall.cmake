# `cmake --install` installs two shared libraries, their headers, the command line, and a CMake package.
#
#   find_package(flashlift)                        flashlift::flashlift
#   find_package(flashlift COMPONENTS stablehlo)   flashlift::stablehlo, in a library of its own, because it needs MLIR
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/flashlift)

# flashlift_shared_library(EXPORT_NAME OUTPUT_NAME FOLDERS...): one shared library from the objects of source folders.
# From objects, because a linker takes from a static library only what is referenced, and nothing references the
# interface's functions.
function(flashlift_shared_library export_name output_name)
  set(target flashlift_shared_${export_name})
  add_library(${target} SHARED)
  foreach(folder IN LISTS ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:flashlift_${folder}>)
    target_link_libraries(${target} PRIVATE flashlift_${folder})
  endforeach()
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_link_options(${target} PRIVATE -Wl,--no-undefined)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output_name} LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  flashlift_export(${target} ${export_name})
endfunction()

function(flashlift_export target export_name)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  if(FLASHLIFT_BUNDLE)
    target_include_directories(${target} INTERFACE
      $<BUILD_INTERFACE:${FLASHLIFT_DLPACK_INCLUDE}>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/flashlift-dependencies>)
  endif()
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${export_name})
  add_library(flashlift::${export_name} ALIAS ${target})
  if(FLASHLIFT_BUNDLE)  # FlashliftBundle.cmake puts a file in the place of the link, which wheels cannot hold
    set(namelink NAMELINK_SKIP)
  endif()
  install(TARGETS ${target} EXPORT flashliftTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${namelink})
endfunction()

get_property(folders GLOBAL PROPERTY FLASHLIFT_FOLDERS)
if(NOT FLASHLIFT_BUNDLE)
  list(REMOVE_ITEM folders command_line)
endif()
if(FLASHLIFT_BUNDLE)
  include(cmake/FlashliftBundle.cmake)
else()
  set(stablehlo_folders ${folders})
  list(FILTER stablehlo_folders INCLUDE REGEX "^stablehlo")
  list(FILTER folders EXCLUDE REGEX "^(stablehlo|xla)")

  flashlift_shared_library(flashlift flashlift ${folders})
  if(stablehlo_folders)
    flashlift_shared_library(stablehlo flashlift_stablehlo ${stablehlo_folders})
  endif()
endif()

if(FLASHLIFT_XLA)
  install(TARGETS flashlift_xla flashlift_pjrt LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  foreach(platform cpu cuda)  # frameworks read the platform from a plugin's file name
    install(FILES $<TARGET_FILE:flashlift_pjrt> DESTINATION ${CMAKE_INSTALL_LIBDIR}
      RENAME pjrt_c_api_flashlift-${platform}_plugin.so)
  endforeach()
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/flashlift DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
configure_file(cmake/flashlift.pc.in ${PROJECT_BINARY_DIR}/flashlift.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flashlift.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(FLASHLIFT_CLI)
  install(TARGETS flashlift_cli)
endif()

install(EXPORT flashliftTargets NAMESPACE flashlift:: DESTINATION ${package_folder})
configure_package_config_file(cmake/flashliftConfig.cmake.in ${PROJECT_BINARY_DIR}/flashliftConfig.cmake
  INSTALL_DESTINATION ${package_folder})
# Before version 1 every minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashliftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/flashliftConfig.cmake ${PROJECT_BINARY_DIR}/flashliftConfigVersion.cmake
  DESTINATION ${package_folder})
