# The bundle: one shared library with everything, including LLVM and MLIR, that exports only the interfaces. The other
# libraries, which programs and frameworks load by their names, are empty and link to it. So a process has Flashlift's LLVM
# once, and its symbols do not clash with those of another LLVM.
flashlift_shared_library(flashlift flashlift ${folders})
target_sources(flashlift_shared_flashlift PRIVATE packaging/arc4random.cpp)
# dlclose() must not unload it, because an XLA runtime would still have pointers to its handlers.
target_link_options(flashlift_shared_flashlift PRIVATE
  -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,--as-needed -Wl,-z,nodelete
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/packaging/libflashlift.map $<$<CONFIG:Release>:-Wl,-s>)
set_target_properties(flashlift_shared_flashlift PROPERTIES VERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/packaging/libflashlift.map)

# flashlift_leads_to_bundle(TARGET): an empty library that links to the bundle, so that dlsym finds the bundle's symbols.
function(flashlift_leads_to_bundle target)
  add_library(${target} MODULE packaging/empty.cpp)
  target_link_libraries(${target} PRIVATE flashlift_shared_flashlift)
  target_link_options(${target} PRIVATE -Wl,--no-as-needed)
endfunction()

if(FLASHLIFT_STABLEHLO)
  add_library(flashlift_shared_stablehlo INTERFACE)
  target_link_libraries(flashlift_shared_stablehlo INTERFACE flashlift_shared_flashlift)
  flashlift_export(flashlift_shared_stablehlo stablehlo)
  flashlift_leads_to_bundle(flashlift_stablehlo_module)
  set_target_properties(flashlift_stablehlo_module PROPERTIES OUTPUT_NAME flashlift_stablehlo)
  install(TARGETS flashlift_stablehlo_module LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(FLASHLIFT_XLA)
  flashlift_leads_to_bundle(flashlift_xla)
endif()
if(FLASHLIFT_CPU)
  install(FILES ${PROJECT_BINARY_DIR}/bundled/libflashlift_tbb.so.12 DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
# flashlift.h includes DLPack's header; a system may have another version of it, or none.
install(FILES ${FLASHLIFT_DLPACK_INCLUDE}/dlpack/dlpack.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flashlift-dependencies/dlpack)

# `-lflashlift` finds this linker script.
file(WRITE ${PROJECT_BINARY_DIR}/bundled/libflashlift.so "INPUT(libflashlift.so.${PROJECT_VERSION_MAJOR})\n")
install(FILES ${PROJECT_BINARY_DIR}/bundled/libflashlift.so DESTINATION ${CMAKE_INSTALL_LIBDIR})

# In a wheel the prefix is a folder of Python packages, and this is on the PATH.
if(SKBUILD AND FLASHLIFT_CLI)
  install(PROGRAMS packaging/flashlift.sh DESTINATION ${SKBUILD_SCRIPTS_DIR} RENAME flashlift COMPONENT wheel EXCLUDE_FROM_ALL)
endif()

# `make deb`.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME flashlift)
set(CPACK_PACKAGE_CONTACT "the Flashlift authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "attention compiler: finds attention in a program and runs it fused")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEB_COMPONENT_INSTALL OFF)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "Finds attention in StableHLO modules, and compiles masks and score functions to fused kernels for CPUs and NVIDIA GPUs.
 The command line, the libraries and headers for C and C++, and the plugin for XLA.")
if(NOT SKBUILD)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)  # as Debian calls it
endif()
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/bundled ${PROJECT_BINARY_DIR})
set(CPACK_STRIP_FILES ON)
if(PROJECT_IS_TOP_LEVEL)
  include(CPack)
endif()
