# flashlift_library(NAME SOURCES ... DEPS ...): the one CMake target of a source folder, as a static library with the
# project's warnings. Headers are found from src/ ("score/builder.h") and include/ ("flashlift/program.h").
function(flashlift_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(flashlift_${name} STATIC ${ARG_SOURCES})
  target_include_directories(flashlift_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(flashlift_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  flashlift_warnings(flashlift_${name})
  set_property(GLOBAL APPEND PROPERTY FLASHLIFT_FOLDERS ${name})
endfunction()

function(flashlift_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wswitch)
  # A project that fetches this one may have other compilers and more warnings.
  if(flashlift_IS_TOP_LEVEL)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The first two have false positives in g++ 12: for std::string's operator+ (GCC bug 105651) and std::optional (80635).
    # The third warns of designated initializers that leave out members, which then have their defaults.
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-maybe-uninitialized -Wno-missing-field-initializers)
  else()
    # In clang, the third has another name, and std::stable_sort of libstdc++ 12 calls a deprecated function.
    target_compile_options(${target} PRIVATE -Wno-missing-designated-field-initializers -Wno-deprecated-declarations)
  endif()
endfunction()

# flashlift_test(NAME SOURCES ... DEPS ...): a GoogleTest program, registered with ctest as NAME.
function(flashlift_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  flashlift_warnings(${name})
  add_test(NAME ${name} COMMAND ${name})
endfunction()
