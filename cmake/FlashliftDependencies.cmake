# Everything that is not the project's own, found in one place. Something missing is an error that says what to install,
# never a part left out silently.

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

find_library(FLASHLIFT_XXHASH_LIBRARY xxhash)
find_path(FLASHLIFT_XXHASH_INCLUDE xxhash.h)
if(NOT FLASHLIFT_XXHASH_LIBRARY OR NOT FLASHLIFT_XXHASH_INCLUDE)
  message(FATAL_ERROR "Flashlift needs xxhash, which was not found. On Debian 12: apt-get install libxxhash-dev")
endif()

# The shared libLLVM and libMLIR, with their headers as system headers: `flashlift_llvm` for src/cpu/jit and
# `flashlift_mlir` for src/stablehlo. Shared, because a static LLVM adds 100 MB and a minute of linking to each program.
set(FLASHLIFT_LLVM_ROOT /usr/lib/llvm-22 CACHE PATH "where LLVM 22 and MLIR 22 are installed")
if((FLASHLIFT_CPU AND FLASHLIFT_JIT) OR FLASHLIFT_STABLEHLO)
  # LLVMConfig.cmake looks for the libraries that LLVM was built with, and fails where their headers are missing.
  flashlift_find(LLVM "llvm-22-dev libzstd-dev zlib1g-dev libxml2-dev libedit-dev libcurl4-openssl-dev"
    CONFIG HINTS ${FLASHLIFT_LLVM_ROOT} NO_DEFAULT_PATH)
  if(NOT LLVM_VERSION_MAJOR EQUAL 22)
    message(FATAL_ERROR "Flashlift needs LLVM 22; ${LLVM_DIR} is ${LLVM_VERSION}. Set FLASHLIFT_LLVM_ROOT.")
  endif()
  add_library(flashlift_llvm INTERFACE)
  target_link_libraries(flashlift_llvm INTERFACE LLVM)
  target_include_directories(flashlift_llvm SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})
endif()
if(FLASHLIFT_STABLEHLO)
  flashlift_find(MLIR "libmlir-22-dev mlir-22-tools" CONFIG HINTS ${FLASHLIFT_LLVM_ROOT} NO_DEFAULT_PATH)
  add_library(flashlift_mlir INTERFACE)
  target_link_libraries(flashlift_mlir INTERFACE MLIR flashlift_llvm)
  target_include_directories(flashlift_mlir SYSTEM INTERFACE ${MLIR_INCLUDE_DIRS})
endif()

if(FLASHLIFT_CPU)
  flashlift_find(TBB libtbb-dev)
endif()
if(FLASHLIFT_CLI OR FLASHLIFT_TESTS)
  flashlift_find(CLI11 libcli11-dev)
endif()
if(FLASHLIFT_CLI OR FLASHLIFT_STABLEHLO OR FLASHLIFT_XLA)
  flashlift_find(nlohmann_json nlohmann-json3-dev)
endif()
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

# jaxlib carries XLA's FFI headers; any other copy of them will do.
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
