# Compiles the GPU kernels of plain and causal attention of the usual depths into a folder beside the library, where
# packaged_cubin() finds them: cmake -DCLI=... -DNVRTC=... -DARCHITECTURES=80,90 -DFOLDER=... -P PackageKernels.cmake
# Kernels do not depend on batch, heads and number of keys. There is one number of queries for each class of lengths.
file(REMOVE_RECURSE ${FOLDER})
set(run ${CMAKE_COMMAND} -E env FLASHLIFT_CACHE_DIR=${FOLDER} FLASHLIFT_NVRTC=${NVRTC} ${CLI})
foreach(dtype bf16 f16)
  foreach(depth 64 128)
    set(plain "attn h1 s4096 d${depth} ${dtype}")
    execute_process(
      COMMAND ${run} compile "${plain}" "${plain} causal" "${plain} lse" "${plain} causal lse"
        --architecture ${ARCHITECTURES} --q-len 1,1024,2048,4096,8192 --json
      OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    # With the words that the front ends of PyTorch and JAX add for training.
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
