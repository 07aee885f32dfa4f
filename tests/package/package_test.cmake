# Run by ctest; see CMakeLists.txt beside this file.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    string(REPLACE ";" " " command "${ARGN}")
    message("${output}")
    message(FATAL_ERROR "failed: ${command}")
  endif()
endfunction()

set(flags "")
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/installed)
# The package must not depend on where it was installed first.
file(RENAME ${WORK}/installed ${WORK}/moved)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/build -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${WORK}/moved -DCMAKE_C_FLAGS=${flags} -DCMAKE_CXX_FLAGS=${flags} -DSTABLEHLO=${STABLEHLO}
  -DEXAMPLES=${CMAKE_CURRENT_LIST_DIR}/../../examples)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
run(${WORK}/build/c_consumer)
if(STABLEHLO)
  run(${WORK}/build/stablehlo_consumer)
endif()

# A component that does not exist is refused with what exists.
file(WRITE ${WORK}/other/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.22)\nproject(other LANGUAGES C)\nfind_package(flashlift REQUIRED COMPONENTS cuda)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK}/other -B ${WORK}/other/build -DCMAKE_PREFIX_PATH=${WORK}/moved
  RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE output)
if(code EQUAL 0 OR NOT output MATCHES "expected no component, or stablehlo")
  message(FATAL_ERROR "a missing component is not explained: ${output}")
endif()
