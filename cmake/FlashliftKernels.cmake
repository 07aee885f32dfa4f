# Puts machine code for plain and causal attention on GPUs into a folder beside the library. The build's command line
# compiles it, without a GPU.
if(NOT FLASHLIFT_CUDA OR NOT FLASHLIFT_CLI)
  message(FATAL_ERROR "FLASHLIFT_KERNELS needs FLASHLIFT_CUDA and FLASHLIFT_CLI")
endif()
find_package(Python COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
  OUTPUT_VARIABLE python_packages OUTPUT_STRIP_TRAILING_WHITESPACE)
find_file(FLASHLIFT_NVRTC NAMES libnvrtc.so.13 REQUIRED
  PATHS ${python_packages}/nvidia/cu13/lib /usr/local/cuda/lib64 NO_DEFAULT_PATH
  DOC "NVRTC that FLASHLIFT_KERNELS are compiled with")
set(FLASHLIFT_KERNEL_ARCHITECTURES "80,86,89,90,100,120" CACHE STRING "GPUs that FLASHLIFT_KERNELS are for")

set(kernel_folder ${PROJECT_BINARY_DIR}/flashlift_kernels)
set(kernel_script ${PROJECT_SOURCE_DIR}/cmake/PackageKernels.cmake)
add_custom_command(
  OUTPUT ${kernel_folder}/nvrtc-version
  COMMAND ${CMAKE_COMMAND} -DCLI=$<TARGET_FILE:flashlift_cli> -DNVRTC=${FLASHLIFT_NVRTC}
    -DARCHITECTURES=${FLASHLIFT_KERNEL_ARCHITECTURES} -DFOLDER=${kernel_folder} -P ${kernel_script}
  DEPENDS flashlift_cli ${kernel_script}
  COMMENT "Compiling kernels for GPUs: takes minutes"
  VERBATIM)
add_custom_target(flashlift_kernels ALL DEPENDS ${kernel_folder}/nvrtc-version)
include(GNUInstallDirs)
install(DIRECTORY ${kernel_folder} DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${kernel_folder} DESTINATION flashlift/lib COMPONENT python EXCLUDE_FROM_ALL)
