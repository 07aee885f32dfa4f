# The options of the compiler and the linker, other than the language standard and warnings.

set(FLASHLIFT_SANITIZE "" CACHE STRING "sanitizers for everything, as in -fsanitize=: address,undefined")

# lld and ccache are used if they are installed, because they save much of a build's time.
find_program(FLASHLIFT_CCACHE ccache)
if(FLASHLIFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these permissions, ccache keeps no results of files that read precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${FLASHLIFT_CCACHE})
endif()

find_program(FLASHLIFT_LLD ld.lld HINTS /usr/lib/llvm-22/bin)
if(FLASHLIFT_LLD)
  # g++ looks for ld.lld beside its other tools, where Debian has it only under a versioned name.
  cmake_path(GET FLASHLIFT_LLD PARENT_PATH lld_folder)
  add_link_options(-fuse-ld=lld -B${lld_folder})
endif()

# Files are linked with the RUNPATH that they are installed with: the folders outside the project that they link to.
# Otherwise CMake pads the RUNPATH of a build with colons, so that an installation can overwrite it in place, and the
# loader reads an empty entry as the current folder. The Python package would contain that, as it copies files as built.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
if(FLASHLIFT_BUNDLE)
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH OFF)
  set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../lib")
endif()

if(FLASHLIFT_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of every library that is fuzzed
endif()

if(FLASHLIFT_SANITIZE)
  # A finding ends the program, so that a test cannot pass with one.
  add_compile_options(-fsanitize=${FLASHLIFT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${FLASHLIFT_SANITIZE})
endif()
