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
