# Finds all dependencies. A missing one is an error that says what to install; no part is left out silently.

set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

# flashlift_find(PACKAGE DEBIAN_PACKAGES [arguments of find_package...])
macro(flashlift_find package debian_packages)
  find_package(${package} QUIET ${ARGN})
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR
      "Flashlift needs ${package}, which was not found. On Debian 12: apt-get install ${debian_packages}\n"
      "(`make` installs all that is needed; the options FLASHLIFT_* in CMakeLists.txt switch off parts.)")
  endif()
endmacro()

flashlift_find(fmt libfmt-dev)
flashlift_find(spdlog libspdlog-dev)
set(FLASHLIFT_SPDLOG spdlog::spdlog$<$<BOOL:${FLASHLIFT_BUNDLE}>:_header_only>)

if(FLASHLIFT_BUNDLE)
  find_library(FLASHLIFT_XXHASH_LIBRARY libxxhash.a)
else()
  find_library(FLASHLIFT_XXHASH_LIBRARY xxhash)
endif()
find_path(FLASHLIFT_XXHASH_INCLUDE xxhash.h)
if(NOT FLASHLIFT_XXHASH_LIBRARY OR NOT FLASHLIFT_XXHASH_INCLUDE)
  message(FATAL_ERROR "Flashlift needs xxhash, which was not found. On Debian 12: apt-get install libxxhash-dev")
endif()

# flashlift_static_libraries(TARGET PATTERN LIBRARIES...): links the archives of imported targets, and of those of their
# dependencies whose names match the pattern. It does not link the targets themselves: MLIR's depend on the shared LLVM.
function(flashlift_static_libraries target pattern)
  set(open ${ARGN})
  set(found "")
  while(open)
    list(POP_FRONT open library)
    if(NOT library MATCHES ${pattern} OR library IN_LIST found OR NOT TARGET ${library})
      continue()
    endif()
    list(APPEND found ${library})
    get_target_property(needed ${library} INTERFACE_LINK_LIBRARIES)
    if(needed)
      list(TRANSFORM needed REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1")
      list(APPEND open ${needed})
    endif()
  endwhile()
  list(TRANSFORM found REPLACE "(.+)" "$<TARGET_FILE:\\1>")
  list(JOIN found "," found)
  target_link_libraries(${target} INTERFACE "$<LINK_GROUP:RESCAN,${found}>")
endfunction()

# LLVM and MLIR, with their headers as system headers: `flashlift_llvm` for src/cpu/jit and `flashlift_mlir` for
# src/stablehlo. Shared libraries, because a static LLVM adds tens of megabytes to each program and a minute to its
# linking; static ones in a bundle, so that its users need no other library.
set(FLASHLIFT_LLVM_ROOT /usr/lib/llvm-22 CACHE PATH "where LLVM 22 and MLIR 22 are installed")
if((FLASHLIFT_CPU AND FLASHLIFT_JIT) OR FLASHLIFT_STABLEHLO)
  # LLVMConfig.cmake looks for the libraries that LLVM was built with, and fails where their headers are missing.
  flashlift_find(LLVM "llvm-22-dev libzstd-dev zlib1g-dev libxml2-dev libedit-dev libcurl4-openssl-dev"
    CONFIG HINTS ${FLASHLIFT_LLVM_ROOT} NO_DEFAULT_PATH)
  if(NOT LLVM_VERSION_MAJOR EQUAL 22)
    message(FATAL_ERROR "Flashlift needs LLVM 22; ${LLVM_DIR} is ${LLVM_VERSION}. Set FLASHLIFT_LLVM_ROOT.")
  endif()
  add_library(flashlift_llvm INTERFACE)
  if(FLASHLIFT_BUNDLE)
    set(llvm_components asmparser bitwriter remarks)  # MLIR's
    if(FLASHLIFT_CPU AND FLASHLIFT_JIT)
      list(APPEND llvm_components orcjit native)
    endif()
    llvm_map_components_to_libnames(llvm_libraries ${llvm_components})
    flashlift_static_libraries(flashlift_llvm "^LLVM." ${llvm_libraries})
    foreach(name z zstd)  # which LLVM compresses with
      find_library(FLASHLIFT_LIB${name} lib${name}.a REQUIRED)
      target_link_libraries(flashlift_llvm INTERFACE ${FLASHLIFT_LIB${name}})
    endforeach()
  else()
    target_link_libraries(flashlift_llvm INTERFACE LLVM)
  endif()
  target_include_directories(flashlift_llvm SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})
endif()
if(FLASHLIFT_STABLEHLO)
  flashlift_find(MLIR "libmlir-22-dev mlir-22-tools" CONFIG HINTS ${FLASHLIFT_LLVM_ROOT} NO_DEFAULT_PATH)
  add_library(flashlift_mlir INTERFACE)
  if(FLASHLIFT_BUNDLE)
    flashlift_static_libraries(flashlift_mlir "^MLIR." MLIRAnalysis MLIRArithDialect MLIRBytecodeReader
      MLIRBytecodeWriter MLIRFuncDialect MLIRParser MLIRQuantDialect MLIRShapeDialect MLIRTensorDialect)
  else()
    target_link_libraries(flashlift_mlir INTERFACE MLIR)
  endif()
  target_link_libraries(flashlift_mlir INTERFACE flashlift_llvm)
  target_include_directories(flashlift_mlir SYSTEM INTERFACE ${MLIR_INCLUDE_DIRS})
endif()

if(FLASHLIFT_CPU)
  flashlift_find(TBB libtbb-dev)
  if(FLASHLIFT_BUNDLE)
    # A copy with a name of its own, because a process may have loaded an older oneTBB.
    find_program(FLASHLIFT_PATCHELF patchelf REQUIRED)
    set(bundled_tbb ${PROJECT_BINARY_DIR}/bundled/libflashlift_tbb.so.12)
    get_target_property(system_tbb TBB::tbb IMPORTED_LOCATION_RELEASE)
    if(NOT system_tbb)
      get_target_property(system_tbb TBB::tbb IMPORTED_LOCATION_NONE)
    endif()
    file(REAL_PATH ${system_tbb} system_tbb)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/bundled)
    file(COPY_FILE ${system_tbb} ${bundled_tbb})
    execute_process(COMMAND ${FLASHLIFT_PATCHELF} --set-soname libflashlift_tbb.so.12 ${bundled_tbb} COMMAND_ERROR_IS_FATAL ANY)
    set_target_properties(TBB::tbb PROPERTIES IMPORTED_LOCATION ${bundled_tbb} IMPORTED_LOCATION_RELEASE ${bundled_tbb}
      IMPORTED_LOCATION_NONE ${bundled_tbb} IMPORTED_SONAME libflashlift_tbb.so.12)
  endif()
endif()
if(FLASHLIFT_CLI OR FLASHLIFT_TESTS)
  flashlift_find(CLI11 libcli11-dev)
endif()
flashlift_find(nlohmann_json nlohmann-json3-dev)
if(FLASHLIFT_TESTS)
  flashlift_find(GTest "libgtest-dev libgmock-dev")
endif()
if(FLASHLIFT_TESTS OR FLASHLIFT_XLA)
  # The Makefile names the environment in build/venv; its packages bring jaxlib's headers and pytest.
  flashlift_find(Python python3 COMPONENTS Interpreter)
endif()

# What flashlift.h includes, so users of the C interface need it too.
find_path(FLASHLIFT_DLPACK_INCLUDE dlpack/dlpack.h)
if(NOT FLASHLIFT_DLPACK_INCLUDE)
  message(FATAL_ERROR "Flashlift needs dlpack, which was not found. On Debian 12: apt-get install libdlpack-dev")
endif()

# jaxlib contains XLA's FFI headers; any other copy of them works, too.
if(FLASHLIFT_XLA)
  set(FLASHLIFT_XLA_INCLUDE_DIR "" CACHE PATH "folder that holds xla/ffi/api/ffi.h; empty means jaxlib's")
  set(xla_include "${FLASHLIFT_XLA_INCLUDE_DIR}")
  if(NOT xla_include)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c "import jaxlib, pathlib; print(pathlib.Path(jaxlib.__file__).parent / 'include')"
      OUTPUT_VARIABLE xla_include OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT EXISTS "${xla_include}/xla/ffi/api/ffi.h")
    message(FATAL_ERROR
      "FLASHLIFT_XLA needs XLA's FFI headers: install jaxlib for ${Python_EXECUTABLE}, name a folder that holds "
      "xla/ffi/api/ffi.h as FLASHLIFT_XLA_INCLUDE_DIR, or switch the part off with -DFLASHLIFT_XLA=OFF")
  endif()
  add_library(flashlift_xla_headers INTERFACE)
  target_include_directories(flashlift_xla_headers SYSTEM INTERFACE ${xla_include})
endif()
