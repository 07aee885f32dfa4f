# Compiles what plain and causal attention of the usual depths run on GPUs into a folder that the library finds beside
# itself (packaged_cubin): cmake -DCLI=... -DNVRTC=... -DARCHITECTURES=80,90 -DFOLDER=... -P PackageKernels.cmake
# Batches, heads and key lengths share kernels, so any will do; of the query's lengths there is one for each class.
file(REMOVE_RECURSE ${FOLDER})
set(run ${CMAKE_COMMAND} -E env FLASHLIFT_CACHE_DIR=${FOLDER} FLASHLIFT_NVRTC=${NVRTC} ${CLI})
foreach(dtype bf16 f16)
  foreach(depth 64 128)
    set(plain "attn h1 s4096 d${depth} ${dtype}")
    execute_process(
      COMMAND ${run} compile "${plain}" "${plain} causal" "${plain} lse" "${plain} causal lse"
        --architecture ${ARCHITECTURES} --q-len 1,1024,2048,4096,8192 --json
      OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    # As PyTorch and JAX train.
    set(jax "lse out=f32 d_out=inputs")
    execute_process(
      COMMAND ${run} compile "${plain} lse residual" "${plain} causal lse residual" "${plain} ${jax}"
        "${plain} causal ${jax}" --architecture ${ARCHITECTURES} --q-len 1024,2048,4096,8192 --backward --json
      OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()
execute_process(COMMAND ${run} info --json OUTPUT_VARIABLE info COMMAND_ERROR_IS_FATAL ANY)
if(NOT info MATCHES "\"nvrtc\": \"([0-9.]+)\"")
  message(FATAL_ERROR "`flashlift info --json` names no version of NVRTC")
endif()
file(WRITE ${FOLDER}/nvrtc-version "${CMAKE_MATCH_1}")
