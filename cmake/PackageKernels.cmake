# Compiles what plain and causal attention of the usual depths run on GPUs into a folder that the library finds beside
# itself (packaged_cubin): cmake -DCLI=... -DNVRTC=... -DARCHITECTURES=80,90 -DFOLDER=... -P PackageKernels.cmake
file(REMOVE_RECURSE ${FOLDER})
set(run ${CMAKE_COMMAND} -E env FLASHLIFT_CACHE_DIR=${FOLDER} FLASHLIFT_NVRTC=${NVRTC} ${CLI})
foreach(depth 64 128)
  set(plain "attn h1 s4096 d${depth} bf16 lse")
  execute_process(
    COMMAND ${run} compile "${plain}" "${plain} causal"
      --architecture ${ARCHITECTURES} --q-len 1,1024,4096 --json
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND ${run} compile "${plain} residual" "${plain} residual causal"
      --architecture ${ARCHITECTURES} --q-len 1024,4096 --backward --json
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND ${run} info --json OUTPUT_VARIABLE info COMMAND_ERROR_IS_FATAL ANY)
if(NOT info MATCHES "\"nvrtc\": \"([0-9.]+)\"")
  message(FATAL_ERROR "`flashlift info --json` names no version of NVRTC")
endif()
file(WRITE ${FOLDER}/nvrtc-version "${CMAKE_MATCH_1}")
